"""Draw every learning-rate schedule, without an optimizer or training.

    python examples/schedulers.py [--plot schedulers.png]

The script makes the picture in docs/schedulers.md: 100 steps from a rate of 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from optgen.optim import lr_scheduler as lr
from optgen.optim.swa_utils import SWALR

STEPS = 100


def _warm_cosine(o: Any) -> Any:
    warm_up = lr.LinearLR(o, start_factor=0.05, total_iters=15)
    return lr.SequentialLR(o, [warm_up, lr.CosineAnnealingLR(o, T_max=85)], milestones=[15])


def _chained(o: Any) -> Any:
    return lr.ChainedScheduler([lr.ConstantLR(o, 0.3, 30), lr.ExponentialLR(o, 0.985)])


def _late_chain(o: Any) -> Any:
    return lr.SequentialLR(o, [lr.LinearLR(o, 0.1, total_iters=40), _chained(o)], milestones=[40])


GALLERY: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr.StepLR(o, step_size=25, gamma=0.5),
    "MultiStepLR": lambda o: lr.MultiStepLR(o, milestones=[50, 75, 90], gamma=0.3),
    "ExponentialLR": lambda o: lr.ExponentialLR(o, gamma=0.97),
    "ConstantLR": lambda o: lr.ConstantLR(o, factor=0.3, total_iters=20),
    "LinearLR": lambda o: lr.LinearLR(o, start_factor=0.1, total_iters=40),
    "PolynomialLR": lambda o: lr.PolynomialLR(o, total_iters=100, power=2),
    "CosineAnnealingLR": lambda o: lr.CosineAnnealingLR(o, T_max=100),
    "CosineAnnealingWarmRestarts": lambda o: lr.CosineAnnealingWarmRestarts(o, T_0=15, T_mult=2),
    "LambdaLR": lambda o: lr.LambdaLR(o, lambda step: (1 + step) ** -0.5),
    "MultiplicativeLR": lambda o: lr.MultiplicativeLR(o, lambda step: 1 - step / 1000),
    "CyclicLR": lambda o: lr.CyclicLR(o, 0.1, 1, step_size_up=12, mode="triangular2"),
    "OneCycleLR": lambda o: lr.OneCycleLR(o, max_lr=1, total_steps=STEPS),
    "ReduceLROnPlateau": lambda o: lr.ReduceLROnPlateau(o, factor=0.5, patience=5),
    "SWALR": lambda o: SWALR(o, swa_lr=0.3, anneal_epochs=30),
    "WarmupStableDecayLR": lambda o: lr.WarmupStableDecayLR(o, 15, 60, 25, "sqrt"),
    "SequentialLR": _warm_cosine,
    "ChainedScheduler": _chained,
    "SequentialLR of a chain": _late_chain,
}
METRICS = [1 / (1 + step) if step < 30 else 1 / 30 for step in range(STEPS)]
"""A metric for ReduceLROnPlateau in each step: it falls for 30 steps, and is then constant."""


def rates(name: str) -> list[float]:
    """Return the rate in each step of a schedule in the gallery."""
    return lr.preview(GALLERY[name], STEPS, metrics=METRICS if "Plateau" in name else None)


def draw(path: str) -> None:
    """Draw all schedules of the gallery into a file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(3, 6, figsize=(11, 4.2), sharex=True, sharey=True)
    for panel, name in zip(panels.flat, GALLERY, strict=True):
        panel.plot(rates(name), color="#2a6f97", linewidth=1.6, drawstyle="steps-post")
        panel.set_title(name, fontsize=7.5)
        panel.tick_params(labelsize=6)
        panel.set_ylim(-0.03, 1.06)
        panel.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("step", fontsize=8)
    figure.supylabel("learning rate", fontsize=8)
    figure.tight_layout(pad=0.5, rect=(0.015, 0, 1, 1))
    figure.savefig(path, dpi=100)
    print(f"{len(GALLERY)} schedules: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", default="schedulers.png", help="the file to draw into")
    draw(parser.parse_args().plot)
