"""Train a small transformer on text with results of track 3, and draw the curves.

    python -m examples.track3 muon_h ema_nesterov --seeds 3

Tuned AdamW and tuned SGD train beside them. Runs that the file has already are not repeated.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

from examples.track3.baselines import BASELINES
from examples.track3.drawing import draw, table
from examples.track3.measured import Measured
from examples.track3.results import RESULTS
from examples.track3.training import Run, Setup, train

HERE = Path(__file__).parent


def trained(measured: Measured, name: str, seed: int, lr: float | None = None) -> Run:
    """Train once, and print the progress."""
    result = RESULTS[name] if lr is None else BASELINES[name].at(lr)
    label = f"{name}, seed {seed}" + ("" if lr is None else f", lr {lr:g}")

    def report(step: int, loss: float) -> None:
        print(f"\r{label}: step {step} of {measured.setup.steps}, {loss:.4f}", end="", flush=True)

    run = train(name, result, seed, measured.setup, lr, report)
    end = "" if math.isfinite(run.last(measured.setup)) else ", diverged"
    print(f"{end}, {run.seconds:.0f} s", flush=True)
    return run


def tune(measured: Measured, name: str) -> None:
    """Try a baseline's learning rates with one seed that no other run has."""
    known = {run.lr for run in measured.tuning if run.name == name}
    for lr in BASELINES[name].rates:
        if lr not in known:
            measured.tuning.append(trained(measured, name, -1, lr))
            measured.save()
    best = measured.best_rate(name)
    assert best is not None
    print(f"{name}: lr {best:g} is the best of {BASELINES[name].rates}")
    if best in (min(BASELINES[name].rates), max(BASELINES[name].rates)):
        print(f"this is the first or the last: try more rates in {HERE / 'baselines.py'}")


def main() -> None:
    """Train what the file lacks, print a table, and draw."""
    parser = argparse.ArgumentParser(prog="python -m examples.track3", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="result", help=", ".join(RESULTS))
    parser.add_argument("--seeds", type=int, default=2, help="how many trainings of each")
    parser.add_argument("--steps", type=int, default=Setup.steps)
    parser.add_argument("--tune", action="store_true", help="only search the baselines' rates")
    parser.add_argument("--out", type=Path, default=HERE / "measured.json")
    parser.add_argument("--plot", type=Path, default=HERE / "curves.png")
    arguments = parser.parse_args()
    for name in set(arguments.names) - set(RESULTS):
        parser.error(f"there is no result {name!r}, but {', '.join(RESULTS)}")
    torch.set_num_threads(1)
    measured = Measured.load(arguments.out, Setup(arguments.steps))
    for name in BASELINES:
        tune(measured, name)
    for name in () if arguments.tune else (*BASELINES, *arguments.names):
        done = {run.seed for run in measured.of(name)}
        for seed in sorted(set(range(arguments.seeds)) - done):
            lr = measured.best_rate(name) if name in BASELINES else None
            measured.runs.append(trained(measured, name, seed, lr))
            measured.save()
    if measured.runs:
        print(f"\n{table(measured)}")
        draw(measured, arguments.plot)


if __name__ == "__main__":
    main()
