"""Train a small transformer on text with results of track 3, and draw the curves.

    python -m examples.track3 muon_h ema_nesterov --seeds 3

Tuned AdamW and tuned SGD are trained, too. Runs that measured.json holds are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path

import torch

from examples.track3.baselines import BASELINES
from examples.track3.drawing import draw, table
from examples.track3.results import RESULTS
from examples.track3.saved_runs import SavedRuns
from examples.track3.training import Run, Setup, train

HERE = Path(__file__).parent
TUNING_SEED = -1  # a seed that no curve has


def train_and_report(
    saved: SavedRuns, name: str, seed: int, lr: float | None = None, scaled: bool = False
) -> Run:
    """Train a result or a baseline once, and print the progress."""
    result = RESULTS[name] if lr is None else BASELINES[name].as_result(lr, scaled)
    start = "scaled weights" if result.scaled else "zeros"
    label = f"{name} from {start}, seed {seed}" + ("" if lr is None else f", lr {lr:g}")

    def report(step: int, loss: float) -> None:
        print(f"\r{label}: step {step} of {saved.setup.steps}, {loss:.4f}", end="", flush=True)

    run = train(name, result, seed, saved.setup, lr, report)
    diverged = "" if math.isfinite(run.last_loss(saved.setup)) else ", diverged"
    print(f"{diverged}, {run.seconds:.0f} s", flush=True)
    return run


def tune(saved: SavedRuns, name: str) -> None:
    """Try a baseline's rates with both kinds of initial weights, where the file has no such run."""
    rates = BASELINES[name].rates
    finished = {(run.lr, run.scaled) for run in saved.tuning if run.name == name}
    for lr, scaled in itertools.product(rates, (False, True)):
        if (lr, scaled) not in finished:
            saved.tuning.append(train_and_report(saved, name, TUNING_SEED, lr, scaled))
            saved.save()
    best = saved.best_tuning_run(name)
    print(f"{name}: lr {best.lr:g} is the best of {rates}, scaled weights: {best.scaled}")
    if best.lr in (min(rates), max(rates)):
        print(f"this is the lowest or the highest: add rates in {HERE / 'baselines.py'}")


def main() -> None:
    """Train the runs that the file lacks, print a table, and draw the curves."""
    parser = argparse.ArgumentParser(prog="python -m examples.track3", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="result", help=", ".join(RESULTS))
    parser.add_argument("--seeds", type=int, default=2, help="how many runs of each result")
    parser.add_argument("--steps", type=int, default=Setup.steps)
    parser.add_argument("--tune", action="store_true", help="only search the baselines' rates")
    parser.add_argument("--out", type=Path, default=HERE / "measured.json")
    parser.add_argument("--plot", type=Path, default=HERE / "curves.png")
    arguments = parser.parse_args()
    for name in set(arguments.names) - set(RESULTS):
        parser.error(f"there is no result {name!r}; the results are {', '.join(RESULTS)}")
    torch.set_num_threads(1)
    saved = SavedRuns.load(arguments.out, Setup(arguments.steps))
    for name in BASELINES:
        tune(saved, name)
    for name in () if arguments.tune else (*BASELINES, *arguments.names):
        finished_seeds = {run.seed for run in saved.runs_of(name)}
        for seed in sorted(set(range(arguments.seeds)) - finished_seeds):
            best = saved.best_tuning_run(name) if name in BASELINES else None
            tuned = (best.lr, best.scaled) if best else ()
            saved.runs.append(train_and_report(saved, name, seed, *tuned))
            saved.save()
    if saved.runs:
        print(f"\n{table(saved)}")
        draw(saved, arguments.plot)


if __name__ == "__main__":
    main()
