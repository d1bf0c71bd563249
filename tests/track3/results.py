"""Accepted results of track 3: their specs, groups and schedules, and their steps in plain torch.

A schedule gives the options of a group by the share of the training that has passed. A test takes
few steps, with the options of as many steps from the whole training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from track3 import muons, soaps
from track3.muons import Own

Step = Callable[[Tensor, Tensor, Own, Own], Tensor]
"""Takes a parameter, its gradient, what it keeps and its group's options; returns the new one."""
Schedule = Callable[[float], float]
Shape = tuple[int, ...]

ZERO, QUIET = (5, 5), (7, 7)
"""Shapes of a matrix that begins at zero, as half of track 3's, and of one with small gradients."""
MATRICES: tuple[Shape, ...] = ((6, 6), (9, 4), (4, 9), (6, 6), ZERO, QUIET)
AUXILIARY: tuple[tuple[float, tuple[Shape, ...]], ...] = (
    (0.3, ((12, 5),)),
    (1 / 320, ((12, 5),)),
    (0.01, ((5,), (9,), ())),
)
"""Learning rates and shapes of what AdamW steps: embedding, head, gains with biases."""
ADAMW = {"betas": (0.8, 0.95), "eps": 1e-10}


@dataclass(frozen=True)
class Group:
    """A param group.

    Attributes:
        shapes: those of its parameters.
        options: those of the optimizer.
        step: the step of one parameter in plain torch.
        schedule: the factor of the learning rate.
        more: other options that change.
        spec: the name of the spec, if not the result's.
    """

    shapes: tuple[Shape, ...]
    options: Own
    step: Step
    schedule: Schedule

    more: Callable[[float], Own] = lambda progress: {}
    spec: str = ""

    def at(self, progress: float) -> Own:
        """Return the options of a step."""
        lr = self.options["lr"] * self.schedule(progress)
        return {**self.options, "lr": lr, **self.more(progress)}


@dataclass(frozen=True)
class Result:
    """An accepted result: a spec, groups, and what happens to each parameter after a step."""

    spec: str
    groups: list[Group]
    after: Callable[[Tensor, Own], Tensor] | None = None
    steps: int = 30
    decomposes: bool = False


def cooled(fraction: float, power: float = 1.0, low: float = 0.0) -> Schedule:
    """Return 1, and then a way down to a low factor during the last fraction of the training."""

    def factor(progress: float) -> float:
        return low + (1 - low) * min(1.0, (1 - progress) / fraction) ** power

    return factor


def longer(ratio: float, schedule: Schedule) -> Schedule:
    """Return a schedule of a longer training than the one that takes place."""
    return lambda progress: schedule(progress / ratio)


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


def auxiliary(schedule: Schedule, spec: str = "", **options: object) -> list[Group]:
    """Return the groups of a result that AdamW steps."""
    return [
        Group(shapes, {"lr": lr, **ADAMW, **options}, adamw, schedule, spec=spec)
        for lr, shapes in AUXILIARY
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


def beside_adamw(spec: str, groups: list[Group], aux: Schedule) -> Result:
    """Return a result whose matrices have a spec of their own, with eigenbases."""
    others = auxiliary(aux, "adamw", weight_decay=0.0)
    return Result(spec, [*groups, *others], decomposes=True)


def in_bases(spec: str, step: Step, schedule: Schedule, aux: Schedule) -> Result:
    """Return a result whose matrices are all on spheres, in eigenbases."""
    return beside_adamw(spec, [Group(MATRICES, {"lr": 0.018}, step, schedule)], aux)


def shampoo() -> Result:
    """Return the result with Meta's Shampoo. Its first roots are of matrices of full rank."""
    group = Group(MATRICES, {"lr": 0.0015, "weight_decay": 0.2}, soaps.shampoo, cooled(0.7))
    return replace(beside_adamw("shampoo", [group], cooled(0.7)), decomposes=False)


def with_soap(spec: str, step: Step, kinds: list[Own], more: Callable[[float], Own]) -> Result:
    """Return a result whose matrices are of several kinds."""
    way = cooled(0.7)
    groups = [Group(MATRICES, {"lr": 0.0375, **kind}, step, way, more) for kind in kinds]
    return beside_adamw(spec, groups, way)


def trust(progress: float) -> Own:
    """Return the bounds of a gate."""
    return {"trust": soaps.trust_bounds(progress * 3175)}


def powercool(start: float, slope: float) -> Schedule:
    """Return a schedule that is under a power of what is left of 3105 steps, of which 3040 take."""
    return lambda progress: min(1.0, slope / start * (3105 - 3040 * progress) ** 1.2)


def soft_muon() -> Result:
    """Return the result whose shares of two directions change, with three kinds of matrices."""
    schedule = powercool(0.0375, 3.3169534699576625e-06)

    def shares(progress: float) -> Own:
        step = 3040 * progress
        soft = min(0.8, max(0.0, (step - 2500) / (3010 - 2500)))
        return {"contra": 0.2 * (1 - min(1.0, step / 2000)), "soft": soft}

    kinds = [PLAIN | {"value": False}, SOAP | {"value": False}, SOAP | {"value": True}]
    groups = [
        Group(MATRICES, {"lr": 0.0375, **kind}, soaps.soft_muon, schedule, shares) for kind in kinds
    ]
    aux = beside_adamw("soft_muon", groups, cooled(1.0))
    slopes = (4.976805410800738e-05, 5.184172302917436e-07, 1.6589351369335795e-06)
    others = [
        replace(group, schedule=powercool(group.options["lr"], slope))
        for group, slope in zip(aux.groups[len(groups) :], slopes, strict=True)
    ]
    return replace(aux, groups=[*groups, *others])


PLAIN, SOAP = {"soap": False}, {"soap": True}
OPEN, GATED = {"gated": False}, {"gated": True}

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
    14: with_soap("contra_soap", soaps.contra_soap, [PLAIN, SOAP], lambda progress: {}),
    16: with_soap(
        "trustlight",
        soaps.trustlight,
        [PLAIN | OPEN, SOAP | OPEN, SOAP | GATED],
        trust,
    ),
    19: in_bases("klsoaph", soaps.klsoaph, cooled(1.0), cooled(0.4)),
    20: soft_muon(),
    21: shampoo(),
    22: decayed("spectral_descent", muons.spectral_descent, 0.03, 0.015),
    24: kept("contra_muon", muons.contra_muon, 0.0375, cooled(0.8), cooled(0.4)),
    25: in_bases(
        "klsoaph",
        soaps.klsoaph,
        longer(3125 / 3040, cooled(1.0, 1.5, 0.017)),
        longer(3125 / 3040, cooled(0.4, 1.5, 0.04)),
    ),
    27: in_bases("soaph", soaps.soaph, longer(3200 / 3125, cooled(1.0, 1.25)), cooled(0.4)),
}
"""The results, by their numbers in the table of KellerJordan/modded-nanogpt."""
