"""Measure Muon against torch's, and each way of its iterations: `python benchmarks/matrices.py`.

Steps of the two classes alternate, on the matrices of a model. The first table has the fastest step
and the median of each, and torch's fastest over ours. The second table has matrices one by one:
the fastest run of each way to iterate, beside the cost model's prediction for one core. Another
process may take the CPU at any time, so that minima say more than medians. `--out FILE` writes the
tables as a page; `benchmarks/results/matrices.md` is one.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim._muon import _zeropower_via_newtonschulz

import optgen.optim
from optgen.runtime import newton_schulz, newton_schulz_cost

QUINTIC = (3.4445, -4.775, 2.0315)
STEPS = 5
# The matrices of two blocks of a model, of one large block, and of a batch of experts.
MODELS: dict[str, list[tuple[int, ...]]] = {
    "GPT-2 small, 2 blocks": [(2304, 768), (768, 768), (3072, 768), (768, 3072)] * 2,
    "ViT-B, 2 blocks": [*[(768, 768)] * 4, (3072, 768), (768, 3072)] * 2,
    "Llama 1B, a block": [
        *[(2048, 2048)] * 2,
        *[(512, 2048)] * 2,
        *[(8192, 2048)] * 2,
        (2048, 8192),
    ],
    "MoE, 8 experts": [(8, 1024, 512), (8, 512, 1024)],
    "heads, 48 of 64 x 768": [(64, 768)] * 48,
}
SHAPES = (
    *((768, 768), (768, 2304), (2304, 768), (768, 3072), (3072, 768), (1024, 1024), (128, 4096)),
    *((256, 256), (512, 512), (512, 1024), (64, 768), (1024, 2048)),
)


def alternate(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Return the times of runs in milliseconds. They alternate: three each, more in the budget."""
    on_one_thread = torch.get_num_threads() == 1
    clock = time.process_time if on_one_thread else time.perf_counter
    times: dict[str, list[float]] = {label: [] for label in runs}
    end = time.monotonic() + seconds
    while len(times[next(iter(runs))]) < 3 or time.monotonic() < end:
        for label, run in runs.items():
            start = clock()
            run()
            times[label].append((clock() - start) * 1e3)
    return times


def steps_of(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Return a step of each class, on parameters of its own with equal gradients.

    torch's class takes matrices only, so that it has the experts of a batch one by one.
    """
    runs: dict[str, Callable[[], object]] = {}
    for label, module in (("ours", optgen.optim), ("torch", torch.optim)):
        torch.manual_seed(0)
        params = [Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
        if label == "torch":
            params = [Parameter(x.detach()) for p in params for x in p.view(-1, *p.shape[-2:])]
        for param in params:
            param.grad = torch.randn_like(param)
        group: dict[str, object] = {"params": params}
        if label == "ours" and any(param.dim() > 2 for param in params):
            group["view"] = (params[0].size(0), -1, params[0].size(-1))
        runs[label] = module.Muon([group], lr=1e-4).step
        runs[label]()
    return runs


def model_lines(names: list[str], seconds: float) -> Iterator[str]:
    """Yield the table of models."""
    yield "| matrices | dtype | ours, min and median | torch, min and median | torch / ours |"
    yield "|---|---|---|---|---|"
    for name in names:
        for dtype in (torch.float32, torch.bfloat16):
            times = alternate(steps_of(MODELS[name], dtype), seconds)
            ours, torchs = times["ours"], times["torch"]
            yield (
                f"| {name} | {str(dtype).removeprefix('torch.')} "
                f"| {min(ours):.1f} {median(ours):.1f} | {min(torchs):.1f} {median(torchs):.1f} "
                f"| {min(torchs) / min(ours):.2f} |"
            )


def by_way(way: str, x: Tensor) -> Callable[[], object]:
    """Return a function that iterates by one way."""

    def run() -> None:
        with newton_schulz.force_way(way):
            newton_schulz.iterate([x], newton_schulz.Iterations(QUINTIC, STEPS, 1e-7))

    return run


def way_lines(seconds: float) -> Iterator[str]:
    """Yield the table of ways: measured, and predicted in parentheses."""
    ways = newton_schulz.WAYS
    yield f"| matrix | torch | {' | '.join(ways)} | chosen | torch / chosen |"
    yield "|---" * (len(ways) + 4) + "|"
    rates = newton_schulz_cost.rates()
    for shape in SHAPES:
        x = torch.randn(shape)
        runs = {way: by_way(way, x) for way in ways}
        runs["torch"] = partial(_zeropower_via_newtonschulz, x, QUINTIC, STEPS, 1e-7)
        least = {label: min(times) for label, times in alternate(runs, seconds).items()}
        rows, cols = sorted(shape)
        predicted = {
            way: newton_schulz_cost.cost_of(way, rows, cols, STEPS).seconds(rates) * 1e3
            for way in ways
        }
        chosen = newton_schulz_cost.choose_way(rows, cols, STEPS, rates)
        cells = " | ".join(f"{least[way]:.2f} ({predicted[way]:.2f})" for way in ways)
        yield (
            f"| {shape[0]} x {shape[1]} | {least['torch']:.2f} | {cells} | {chosen} "
            f"| {least['torch'] / least[chosen]:.2f} |"
        )


def main() -> None:
    """Print the tables, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4, help="for each line of a table")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--no-ways", action="store_true", help="leave out the second table")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = "CPU time" if options.threads == 1 else "wall time"
    lines = [f"Steps of Muon in milliseconds of {clock}, threads: {options.threads}.", ""]
    tables = [model_lines(options.models, options.seconds)]
    if not options.no_ways:
        tables.append(way_lines(options.seconds))
    for table in tables:
        for line in table:
            print(line, flush=True)
            lines.append(line)
        lines.append("")
    if options.out:
        options.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
