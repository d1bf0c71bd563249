"""Take steps on this machine and store every number: `python steps.py OUT`.

`python steps.py OUT --against OTHER` also compares with the steps of another machine. Inputs are
exact fractions, so both machines begin with equal bits. Elementwise rules compute with operations
that IEEE 754 rounds correctly, so their results must have equal bits. Sums over many elements
have an order that depends on the width of vectors, and products of matrices one that depends on
the library. There, parameters may differ as much as on one machine, if each gradient moves by one
unit of its last place. Both machines iterate Newton-Schulz by torch's products, because processors
with AVX512_BF16 have a function of their own, which rounds in another order. States are not
compared: an eigenvector may have either sign.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import optgen
from optgen import optim
from optgen.runtime import newton_schulz
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
LARGEST_MULTIPLE = 2  # of the difference that moved gradients make


def numbers(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return fractions with 16 bits in [-1/2, 1/2), rounded to a dtype."""
    rows, columns = shape
    positions = torch.arange(rows * columns) + seed * 7919
    return ((positions * 2654435761 % 2**16) / 2**16 - 0.5).reshape(shape).to(dtype)


@dataclass(frozen=True)
class Result:
    """Numbers that the steps of a case left.

    Attributes:
        explained: The lowering of the last step, with its reason.
        params: The parameters.
        states: The tensors of their states.
    """

    explained: str
    params: list[Tensor]
    states: list[Tensor]


def steps(name: str, moves_gradients: bool = False) -> Result:
    """Take the steps of a case, if asked with every gradient moved by one unit."""
    dtypes, optimizer_of, _ = CASES[name]
    params = [
        torch.nn.Parameter(numbers(index, shape, dtype))
        for index, (shape, dtype) in enumerate((s, d) for s in SHAPES for d in dtypes)
    ]
    optimizer = optimizer_of(params)
    for step in range(STEPS):
        for index, param in enumerate(params):
            grad = numbers(100 * step + index + 50, tuple(param.shape), param.dtype)
            param.grad = grad.nextafter(torch.ones_like(grad)) if moves_gradients else grad
        with newton_schulz.force_way("batched"):
            optimizer.step()
    explained = optgen.explain(optimizer)
    state = [value for param in params for value in optimizer.state[param].values()]
    states = [value.detach().clone() for value in state if isinstance(value, Tensor)]
    return Result(explained, [param.detach().clone() for param in params], states)


def exact_difference(ours: list[Tensor], theirs: list[Tensor]) -> str:
    """Name the first tensor whose bits differ; "" if none does."""
    pairs = enumerate(zip(ours, theirs, strict=True))
    return next((f"tensor {n} has other bits" for n, (a, b) in pairs if not torch.equal(a, b)), "")


def difference(ours: list[Tensor], theirs: list[Tensor], moved: list[Tensor]) -> str:
    """Say where parameters of two machines differ more than those with moved gradients do."""
    for index, (a, b, c) in enumerate(zip(ours, theirs, moved, strict=True)):
        found, allowed = (a - b).abs().max().item(), LARGEST_MULTIPLE * (b - c).abs().max().item()
        if not found <= allowed:
            return f"parameter {index} differs by {found:.2g}, and {allowed:.2g} are allowed"
    return ""


def compare(name: str, ours: Result, other: dict[str, list[Tensor]]) -> str:
    """Compare a case with another machine's; return what is wrong, "" if nothing is."""
    if "fused C++" not in ours.explained:
        return "the step is not fused"
    if CASES[name][2]:
        return exact_difference([*ours.params, *ours.states], other[name])
    count = len(ours.params)
    return difference(ours.params, other[name][:count], other[f"{name}, moved"])


def main() -> None:
    """Run the cases, print a line for each, and exit with 1 if one differs from the other run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="file for the numbers")
    parser.add_argument("--against", type=Path, help="file of another machine")
    parser.add_argument("--case", action="append", choices=CASES)
    options = parser.parse_args()
    other = torch.load(options.against) if options.against else None
    numbers_of: dict[str, list[Tensor]] = {}
    failures = 0
    for name in options.case or CASES:
        result = steps(name)
        numbers_of[name] = [*result.params, *result.states]
        if other is None and not CASES[name][2]:
            numbers_of[f"{name}, moved"] = steps(name, moves_gradients=True).params
        problem = compare(name, result, other) if other else ""
        failures += bool(problem)
        print(f"{name}: {problem or 'done'}\n  {result.explained}", flush=True)
        torch.save(numbers_of, options.out)
    print(f"reader: {'on' if tensor_reader.reader() else 'off'}")
    print(f"{len(options.case or CASES) - failures} passed, {failures} failed")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
