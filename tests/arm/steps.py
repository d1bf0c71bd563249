"""Take steps on this machine and store every number: `python steps.py OUT`.

`python steps.py OUT --against OTHER` also compares with the steps of another machine. Inputs are
exact fractions, so both machines begin with equal bits. Elementwise rules compute with operations
that IEEE 754 rounds correctly, so their results must have equal bits. Sums over many elements
have an order that depends on the width of vectors, and products of matrices one that depends on
the library: those results must agree to some units of the last place.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import optgen
from optgen import optim
from optgen.runtime.reader import tensor_reader

SINGLE, DTYPES = [torch.float32], [torch.float32, torch.bfloat16, torch.float16]
Parameters = list[torch.nn.Parameter]
# For each case: the dtypes of its parameters, the optimizer, and whether bits must be equal.
CASES: dict[str, tuple[list[torch.dtype], Callable[[Parameters], torch.optim.Optimizer], bool]] = {
    "AdamW": (DTYPES, lambda params: optim.AdamW(params, lr=0.01), True),
    "SGD": (DTYPES, lambda params: optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True), True),
    "stochastic rounding": (
        [torch.bfloat16],
        lambda params: optgen.load("tests/specs/stochastic_adamw.py")(params),
        True,
    ),
    "AdamW in 8 bits": (SINGLE, lambda params: optim.AdamW8bit(params, lr=0.01), True),
    "Adafactor": (SINGLE, lambda params: optim.Adafactor(params, lr=0.01), False),
    "Muon": (SINGLE, lambda params: optim.Muon(params, lr=0.01), False),
    "SOAP": (SINGLE, lambda params: optim.SOAP(params, lr=0.01), False),
}
SHAPES = [(64, 96), (33, 7)]
STEPS = 4
LARGEST_DIFFERENCE = (
    2e-4  # relative to the largest update; iterations of matrices amplify roundings
)


def numbers(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return fractions with 16 bits in [-1/2, 1/2), rounded to a dtype."""
    rows, columns = shape
    positions = torch.arange(rows * columns) + seed * 7919
    return ((positions * 2654435761 % 2**16) / 2**16 - 0.5).reshape(shape).to(dtype)


def steps(name: str) -> tuple[str, list[Tensor]]:
    """Take the steps of a case; return what the last one took, and parameters with state."""
    dtypes, optimizer_of, _ = CASES[name]
    params = [
        torch.nn.Parameter(numbers(index, shape, dtype))
        for index, (shape, dtype) in enumerate((s, d) for s in SHAPES for d in dtypes)
    ]
    optimizer = optimizer_of(params)
    for step in range(STEPS):
        for index, param in enumerate(params):
            param.grad = numbers(100 * step + index + 50, tuple(param.shape), param.dtype)
        optimizer.step()
    explained = optgen.explain(optimizer)
    state = [value for param in params for value in optimizer.state[param].values()]
    tensors = [*params, *(value for value in state if isinstance(value, Tensor))]
    return explained, [tensor.detach().clone() for tensor in tensors]


def difference(ours: list[Tensor], theirs: list[Tensor], is_exact: bool) -> str:
    """Say how the results of two machines differ; "" if they agree as much as they must."""
    if len(ours) != len(theirs):
        return f"{len(ours)} tensors and {len(theirs)}"
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if torch.equal(a, b):
            continue
        distance = (a.double() - b.double()).abs().max().item()
        scale = b.double().abs().max().item()
        if is_exact or not distance <= LARGEST_DIFFERENCE * scale:
            return f"tensor {index}, {a.dtype}: the largest difference is {distance} of {scale}"
    return ""


def main() -> None:
    """Run the cases, print a line for each, and exit with 1 if one differs from the other run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--case", action="append", choices=CASES)
    options = parser.parse_args()
    other = torch.load(options.against) if options.against else {}
    results: dict[str, list[Tensor]] = {}
    failures = 0
    for name in options.case or CASES:
        explained, results[name] = steps(name)
        torch.save(results, options.out)
        verdict = ""
        if other:
            is_exact = CASES[name][2]
            problem = difference(results[name], other[name], is_exact)
            verdict = problem or ("equal bits" if is_exact else "agrees")
            failures += bool(problem)
        print(f"{name}: {verdict}\n  {explained}", flush=True)
    print(f"reader: {'on' if tensor_reader.reader() else 'off'}", flush=True)
    print(f"{len(results) - failures} passed, {failures} failed")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
