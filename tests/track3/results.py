"""Accepted results of track 3: their specs, groups and schedules, and their steps in plain torch.

A schedule gives the options of a group by the share of the training that has passed. A test takes
few steps, with the options of as many steps from the whole training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from track3 import muons
from track3.muons import Own

Step = Callable[[Tensor, Tensor, Own, Own], Tensor]
"""Takes a parameter, its gradient, what it keeps and its group's options; returns the new one."""
Schedule = Callable[[float], float]
Shape = tuple[int, ...]

MATRICES: tuple[Shape, ...] = ((6, 6), (9, 4), (4, 9), (6, 6), (5, 7))
AUXILIARY: tuple[tuple[float, tuple[Shape, ...]], ...] = (
    (0.3, ((12, 5),)),
    (1 / 320, ((12, 5),)),
    (0.01, ((5,), (9,), ())),
)
"""Learning rates and shapes of what AdamW steps: embedding, head, gains with biases."""
ADAMW = {"betas": (0.8, 0.95), "eps": 1e-10}


@dataclass(frozen=True)
class Group:
    """A param group: shapes, options, the step of one parameter, and a factor of the rate."""

    shapes: tuple[Shape, ...]
    options: Own
    step: Step
    schedule: Schedule

    def at(self, progress: float) -> Own:
        """Return the options of a step."""
        return {**self.options, "lr": self.options["lr"] * self.schedule(progress)}


@dataclass(frozen=True)
class Result:
    """An accepted result: a spec, groups, and what happens to each parameter after a step."""

    spec: str
    groups: list[Group]
    after: Callable[[Tensor, Own], Tensor] | None = None
    steps: int = 30


def cooled(fraction: float) -> Schedule:
    """Return 1, and then a straight way down to 0 during the last fraction of the training."""
    return lambda progress: min(1.0, (1 - progress) / fraction)


def warmed(fraction: float, start: int, schedule: Schedule) -> Schedule:
    """Return a schedule that also grows during the first fraction."""
    return lambda progress: min(1.0, (progress + start / 30) / fraction) * schedule(progress)


def adamw(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    """Take a step of torch's AdamW, as the scripts do."""
    if "torch" not in own:
        kept = {name: o[name] for name in ("betas", "eps")}
        own["torch"] = torch.optim.AdamW([p.clone()], **kept, weight_decay=o.get("weight_decay", 0))
    (group,) = own["torch"].param_groups
    (param,) = group["params"]
    param.copy_(p)
    param.grad, group["lr"] = g, o["lr"]
    own["torch"].step()
    return param.clone()


def auxiliary(schedule: Schedule, **options: object) -> list[Group]:
    """Return the groups of a result that AdamW steps."""
    return [
        Group(shapes, {"lr": lr, **ADAMW, **options}, adamw, schedule) for lr, shapes in AUXILIARY
    ]


def decayed(spec: str, step: Step, lr: float, weight_decay: float) -> Result:
    """Return a result whose matrices decay."""
    matrices = Group(MATRICES, {"lr": lr, "weight_decay": weight_decay}, step, cooled(0.7))
    return Result(spec, [matrices, *auxiliary(cooled(0.7), aux=True, weight_decay=0.0)])


def kept(spec: str, step: Step, lr: float, schedule: Schedule, aux: Schedule) -> Result:
    """Return a result whose matrices do not decay."""
    return Result(spec, [Group(MATRICES, {"lr": lr}, step, schedule), *auxiliary(aux, aux=True)])


def hyperball(spec: str, step: Step) -> Result:
    """Return a result whose matrices keep their norms."""
    return kept(spec, step, 0.018, cooled(1.0), cooled(0.4))


def plain_adamw() -> Result:
    """Return the result that is AdamW everywhere; all rates grow during 250 of 5625 steps."""
    options = {"lr": 0.0015, "betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0.1}
    schedule = warmed(250 / 5625, 1, cooled(0.7))
    return Result(
        "adamw",
        [Group(MATRICES, options, adamw, schedule), *auxiliary(schedule, weight_decay=0.0)],
    )


def muloco() -> Result:
    """Return result 8 in an outer momentum, with enough steps for two of it."""
    inner = hyperball("muloco", muons.normuonh)
    outer = partial(muons.outer_nesterov, lr=0.7, momentum=0.5, interval=30)
    return Result(inner.spec, inner.groups, outer, steps=65)


RESULTS = {
    1: decayed("muon", muons.muon, 0.02, 0.01),
    2: plain_adamw(),
    3: decayed("muon", muons.muon, 0.025, 0.0125),
    4: kept("adamh", muons.adamh, 0.018, warmed(250 / 4875, 0, cooled(1.0)), cooled(0.4)),
    5: hyperball("muonh", muons.muonh),
    6: decayed("muon", muons.muon, 0.025, 0.025),
    7: decayed("muon_squared", muons.muon_squared, 0.1, 0.0125),
    8: hyperball("normuonh", muons.normuonh),
    9: kept("skylight", muons.skylight, 0.0375, cooled(0.7), cooled(0.7)),
    10: decayed("normuon", muons.normuon, 0.035, 0.025),
    11: kept("contra_muon", muons.contra_muon, 0.0375, cooled(0.7), cooled(0.7)),
    12: decayed("muon", muons.muon, 0.035, 0.025),
    13: muloco(),
    22: decayed("spectral_descent", muons.spectral_descent, 0.03, 0.015),
    24: kept("contra_muon", muons.contra_muon, 0.0375, cooled(0.8), cooled(0.4)),
}
"""The results, by their numbers in the table of KellerJordan/modded-nanogpt."""
