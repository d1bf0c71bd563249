"""Measure rules on matrices against public packages: `python benchmarks/matrix_peers.py`.

The packages are those that this Python finds: pytorch_optimizer, heavyball, and soap.py of
nikhilvyas/SOAP on PYTHONPATH. What is missing is left out. Steps of the classes alternate in one
process. A class is measured over whole periods, in which it renews its bases once. The table has
the least and the median time of a step, and the bytes of torch's allocator that a step takes at its
peak, beside parameters, gradients and states. `--compile` lets the classes that compile themselves
do so. The experts of a batch are one parameter here, and one by one for classes of other packages.
"""

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.nn import Parameter
from torch.profiler import ProfilerActivity, profile

from benchmarks.matrices import MODELS

Make = Callable[[list[Parameter]], Any]


def _of_module(module: str, name: str, **options: Any) -> tuple[str, Make]:
    """Return a label, and a function that makes an optimizer of a package's class."""

    def make(params: list[Parameter]) -> Any:
        cls = getattr(importlib.import_module(module), name)
        if params[0].dim() > 2 and module == "optgen.optim":
            return cls(
                [{"params": params, "view": (params[0].size(0), -1, params[0].size(-1))}], **options
            )
        params = [Parameter(x.detach()) for p in params for x in p.view(-1, *p.shape[-2:])]
        is_mixed = (module, name) == ("pytorch_optimizer", "Muon")
        return cls([{"params": params, "use_muon": True}] if is_mixed else params, **options)

    return module.partition(".")[0] + (" Gram" if "ns_method" in options else ""), make


_SOAP = {"lr": 1e-3, "precondition_frequency": 10}
# For each rule: how many steps a period has, and the classes.
RULES: dict[str, tuple[int, list[tuple[str, Make]]]] = {
    "Muon": (
        1,
        [
            _of_module("optgen.optim", "Muon", lr=1e-3),
            _of_module("torch.optim", "Muon", lr=1e-3),
            _of_module("pytorch_optimizer", "Muon", lr=1e-3),
            _of_module("heavyball", "Muon", lr=1e-3),
        ],
    ),
    "SOAP": (
        10,
        [
            _of_module("optgen.optim", "SOAP", **_SOAP),
            _of_module("soap", "SOAP", **_SOAP),
            _of_module("pytorch_optimizer", "SOAP", **_SOAP),
            _of_module("heavyball", "SOAP", **_SOAP, merge_dims=False, max_precond_dim=10000),
        ],
    ),
    "KLSOAP": (
        10,
        [
            _of_module("optgen.optim", "KLSOAP", **_SOAP),
            _of_module("heavyball", "KLSOAP", **_SOAP, merge_dims=False, max_precond_dim=10000),
        ],
    ),
    "Shampoo": (
        1,
        [
            _of_module("optgen.optim", "Shampoo", lr=1e-3),
            _of_module("pytorch_optimizer", "Shampoo", lr=1e-3),
        ],
    ),
}


def optimizers(
    makes: list[tuple[str, Make]], shapes: list[tuple[int, ...]], dtype: torch.dtype
) -> dict[str, Any]:
    """Return an optimizer of each class that is found, on parameters of its own."""
    found: dict[str, Any] = {}
    for label, make in makes:
        torch.manual_seed(0)
        params = [Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
        try:
            found[label] = make(params)
        except ImportError:
            print(f"{label}: not installed", file=sys.stderr)
    return found


def step(optimizer: Any) -> float:
    """Give new gradients and take a step; return its milliseconds."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.randn_like(param)
    start = clock()
    optimizer.step()
    return (clock() - start) * 1e3


def peak_bytes(optimizer: Any) -> int:
    """Return how many bytes torch's allocator gives a step at most at a time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        optimizer.step()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    sums: list[int] = list(accumulate((size for _, size in sorted(changes)), initial=0))
    return max(sums)


def measure(rule: str, shapes: list[tuple[int, ...]], dtype: torch.dtype, seconds: float) -> str:
    """Return the cells of a row of the table."""
    period, makes = RULES[rule]
    by_label = optimizers(makes, shapes, dtype)
    periods: dict[str, list[float]] = {}
    for label, optimizer in list(by_label.items()):
        try:
            for _ in range(period + 1):
                step(optimizer)
            periods[label] = []
        except Exception as error:
            print(f"{label} {rule}: {type(error).__name__}: {error}", file=sys.stderr)
            del by_label[label]
    end = time.monotonic() + seconds
    while not periods["optgen"] or time.monotonic() < end:
        for label, optimizer in by_label.items():
            periods[label].append(sum(step(optimizer) for _ in range(period)) / period)
    peaks = {
        label: max(peak_bytes(each) for _ in range(period)) for label, each in by_label.items()
    }
    cells = [
        f"{label} {min(times):.1f} {median(times):.1f} ({peaks[label] / 2**20:.0f} MiB)"
        for label, times in periods.items()
    ]
    others = [min(times) for label, times in periods.items() if label != "optgen"]
    ratio = f"{min(others) / min(periods['optgen']):.2f}" if others else ""
    return f"{'; '.join(cells)} | {ratio}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10, help="for each row")
    parser.add_argument("--scale", type=int, default=4, help="divides both sides of matrices")
    parser.add_argument("--rules", nargs="*", choices=list(RULES), default=list(RULES))
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS)[:3])
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not options.compile and importlib.util.find_spec("heavyball"):
        importlib.import_module("heavyball.utils").compile_mode = None  # type: ignore[attr-defined]
    print(
        "| rule | matrices | dtype | min and median of a step in ms, peak | fastest other / ours |"
    )
    print("|---|---|---|---|---|")
    for rule in options.rules:
        for model in options.models:
            scale = options.scale
            shapes = [(*s[:-2], s[-2] // scale, s[-1] // scale) for s in MODELS[model]]
            for dtype in options.dtypes:
                cells = measure(rule, shapes, getattr(torch, dtype), options.seconds)
                print(f"| {rule} | {model}, 1/{scale} | {dtype} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
