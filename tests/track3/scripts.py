"""The logged scripts of track 3: their numbers, and their steps in plain torch.

Numbers are repeated here from the logs, so that a wrong one in `examples/track3` is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from track3 import auroras, muons, soaps
from track3.muons import Values

Step = Callable[[Tensor, Tensor, Values, Values], Tensor]
"""A function of a parameter, its gradient, its memory and options; it returns the new parameter."""
Rate = Callable[[int], float]
"""A function of the number of a step; it returns the factor of a learning rate."""
Kinds = tuple[tuple[str, Values], ...]
"""Parts of names of matrices, each with the options of the matrices so named."""


def no_options(step: int) -> Values:
    return {}


@dataclass(frozen=True)
class Script:
    """A logged script.

    Attributes:
        steps: its `train_steps`.
        step: the step of a matrix of the blocks.
        lr: the learning rate of these matrices.
        rate: the schedule of this learning rate.
        aux: the schedules of AdamW's `rates`: one for all, or three.
        kinds: options of some of the matrices, by parts of their names.
        options: options of all these matrices.
        more: options of all these matrices that depend on the step.
        rates: AdamW's learning rates of embedding, head and vectors.
        aux_decay: AdamW's weight decay.
        aux_beta2: the second of AdamW's betas.
        around: a function that changes each parameter after its step.
        count: how many steps a test takes.
        decomposes: whether the script computes eigenvectors.
    """

    steps: int
    step: Step
    lr: float
    rate: Rate
    aux: tuple[Rate, ...]
    kinds: Kinds = ()
    options: Values | None = None
    more: Callable[[int], Values] = no_options
    rates: tuple[float, float, float] = (0.3, 1 / 320, 0.01)
    aux_decay: float = 0.0
    aux_beta2: float = 0.95
    around: Callable[[Tensor, Values, int], Tensor] | None = None
    count: int = 12
    decomposes: bool = False

    def of(self, name: str, shape: tuple[int, ...]) -> tuple[Step, Callable[[int], Values]]:
        """Return the step of a parameter, and its options by the step."""
        if name.startswith("blocks.") and len(shape) > 1:
            options_of_kind = next((o for part, o in self.kinds if part in name), {})
            return self.step, lambda t: {
                "weight_decay": 0.0,
                "soap": False,
                "gated": False,
                "value": False,
                **(self.options or {}),
                **options_of_kind,
                **self.more(t),
                "lr": self.lr * self.rate(t),
            }
        index = {"embed.weight": 0, "proj.weight": 1}.get(name, 2)
        lr, rate = self.rates[index], (self.aux * 3 if len(self.aux) == 1 else self.aux)[index]
        fixed_options = {
            "betas": (0.8, self.aux_beta2),
            "eps": 1e-10,
            "weight_decay": self.aux_decay,
        }
        return adamw, lambda t: {**fixed_options, "lr": lr * rate(t)}


def adamw(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    """Take a step of torch's AdamW, as the scripts do."""
    if "torch" not in memory:
        fixed_options = {name: o[name] for name in ("betas", "eps", "weight_decay")}
        memory["torch"] = torch.optim.AdamW([p.clone()], **fixed_options)
    (group,) = memory["torch"].param_groups
    (param,) = group["params"]
    param.copy_(p)
    param.grad, group["lr"] = g, o["lr"]
    memory["torch"].step()
    return param.clone()


def cooldown(steps: int, share: float, power: float = 1.0, low: float = 0.0) -> Rate:
    def eta(step: int) -> float:
        progress = step / steps
        if progress < 1 - share:
            return 1.0
        return low + (1 - low) * ((1 - progress) / share) ** power

    return eta


def decayed(steps: int, step: Step, lr: float, decay: float) -> Script:
    """Return a script whose matrices decay, with one schedule of all rates."""
    eta = cooldown(steps, 0.7)
    return Script(steps, step, lr, eta, (eta,), options={"weight_decay": decay})


def on_sphere(steps: int, step: Step, **more: object) -> Script:
    """Return a script whose matrices keep their norms."""
    aux = cooldown(steps, 0.4)
    return Script(steps, step, 0.018, cooldown(steps, 1.0), (aux,), **more)  # type: ignore[arg-type]


def floored(
    steps: int, step: Step, kinds: Kinds = (), more: Callable[[int], Values] = no_options
) -> Script:
    """Return a script with a floor under updates, and no decay."""
    eta = cooldown(steps, 0.7)
    decomposes = bool(kinds)
    return Script(steps, step, 0.0375, eta, (eta,), kinds, more=more, decomposes=decomposes)


def result_2() -> Script:
    eta = cooldown(5625, 0.7)

    def warm(step: int) -> float:
        return min(1.0, (step + 1) / 250) * eta(step)

    options = {"betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0.1}
    return Script(5625, adamw, 0.0015, warm, (warm,), options=options)


def result_4() -> Script:
    def rate(step: int) -> float:
        return step / 250 if step < 250 else 1 - step / 4875

    return Script(4875, muons.adamh, 0.018, rate, (cooldown(4875, 0.4),))


def result_13() -> Script:
    outer = partial(muons.outer_nesterov, lr=0.7, momentum=0.5, interval=30)
    return on_sphere(3210, muons.normuonh, around=outer, count=65)


def trust(step: int) -> Values:
    return {"trust": soaps.trust_bounds(step)}


def power(coefficient: float, lr: float, end: int = 3105) -> Rate:
    return lambda step: min(lr, coefficient * max(0.0, end - step) ** 1.2) / lr


def shares(step: int) -> Values:
    soft = min(0.8, max(0.0, (step - 2500) / (3010 - 2500)))
    return {"contra": 0.2 * (1 - min(1.0, step / 2000)), "soft": soft}


def shares_and_pull(step: int) -> Values:
    faded = 1.0 if step < 2000 else 0.0
    if 2000 <= step < 2750:
        faded = 0.5 * (1 + math.cos(math.pi * (step - 2000) / (2750 - 2000)))
    return {**shares(step), "pull": faded}


def softened(
    steps: int, step: Step, more: Callable[[int], Values] = shares, end: int = 3105
) -> Script:
    """Return result 20's script, or one that adds to it."""
    aux = (
        power(4.976805410800738e-05, 0.3, end),
        power(5.184172302917436e-07, 1 / 320, end),
        power(1.6589351369335795e-06, 0.01, end),
    )
    kinds = (
        ("mlp.fc", {"soap": True}),
        ("mlp.proj", {"soap": True}),
        ("attn.v", {"soap": True, "value": True}),
    )
    rate = power(3.3169534699576625e-06, 0.0375, end)
    return Script(steps, step, 0.0375, rate, aux, kinds, more=more, decomposes=True)


def aurora(steps: int, end: int) -> Script:
    """Return result 30's script: momentum grows and falls, and AdamW's beta2 is 0.99."""

    def more(step: int) -> Values:
        mu = 0.95
        if step < 300:
            mu = 0.85 + step / 300 * (0.95 - 0.85)
        elif step > steps - 100:
            mu = 0.95 - (step - (steps - 100)) / 100 * (0.95 - 0.85)
        return {"momentum": mu, "contra": 0.2 * (1 - min(1.0, step / 2500))}

    return replace(softened(steps, auroras.aurora_muon, more, end), aux_beta2=0.99)


def result_36() -> Script:
    eta = cooldown(3250, 0.7)
    options, rates = {"weight_decay": 0.05}, (0.7, 0.004, 0.015)
    return Script(
        3250, muons.muon, 0.025, eta, (eta,), options=options, rates=rates, aux_decay=0.001
    )


def result_37() -> Script:
    eta, aux, rates = cooldown(3250, 1.0), cooldown(3250, 0.85), (0.91, 0.0064, 0.0195)
    return Script(3250, muons.muonh, 0.018, eta, (aux,), rates=rates, aux_decay=0.001)


def ahead(step: int) -> Values:
    """Return how far result 39 looks ahead before the next step, with the rate of this one."""
    following = step + 1
    looks_ahead = following + 1 > 500 and following < 3150 - 750
    return {"look_ahead": 0.6 * cooldown(3150, 0.7)(step) if looks_ahead else 0.0}


def result_39() -> Script:
    def around(p: Tensor, memory: Values, step: int) -> Tensor:
        return muons.follow_move(p, memory, **ahead(step))

    muon = decayed(3150, muons.muon, 0.035, 0.025)
    return replace(muon, more=ahead, around=around, count=24)


def result_40() -> Script:
    inner = aurora(2900, 2980)

    def ahead(step: int) -> Values:
        following = step + 1
        looks_ahead = following + 1 > 300 and following < 2900 - 950
        return {"look_ahead": 0.3 * inner.aux[0](step) if looks_ahead else 0.0}

    def around(p: Tensor, memory: Values, step: int) -> Tensor:
        return muons.follow_move(p, memory, **ahead(step))

    def more(step: int) -> Values:
        return {**inner.more(step), **ahead(step)}

    return replace(inner, more=more, around=around, count=24)


BASES, GATED = {"soap": True}, {"soap": True, "gated": True}
MLPS: Kinds = (("mlp.fc", BASES), ("mlp.proj", BASES))
SPLIT = cooldown(3175, 0.8), (cooldown(3175, 0.4),)
POWERS = cooldown(3125, 1.0, 1.5, 0.017), (cooldown(3125, 0.4, 1.5, 0.04),)
LONGER = cooldown(3200, 1.0, 1.25), (cooldown(3125, 0.4),)

SCRIPTS: dict[int, Script] = {
    1: decayed(3600, muons.muon, 0.02, 0.01),
    2: result_2(),
    3: decayed(3500, muons.muon, 0.025, 0.0125),
    4: result_4(),
    5: on_sphere(3325, muons.muonh),
    6: decayed(3375, muons.muon, 0.025, 0.025),
    7: decayed(3325, muons.muon_squared, 0.1, 0.0125),
    8: on_sphere(3275, muons.normuonh),
    9: floored(3250, muons.skylight),
    10: decayed(3300, muons.normuon, 0.035, 0.025),
    11: floored(3225, muons.contra_muon),
    12: decayed(3350, muons.muon, 0.035, 0.025),
    13: result_13(),
    14: floored(3175, soaps.contra_soap, MLPS),
    16: floored(3175, soaps.trustlight, (*MLPS, ("attn.proj", GATED)), trust),
    19: on_sphere(3125, soaps.klsoaph, decomposes=True),
    20: softened(3040, soaps.soft_muon),
    21: decayed(4150, soaps.shampoo, 0.0015, 0.2),
    22: decayed(8500, muons.spectral_descent, 0.03, 0.015),
    24: Script(3175, muons.contra_muon, 0.0375, *SPLIT),
    25: Script(3040, soaps.klsoaph, 0.018, *POWERS, decomposes=True),
    27: Script(3125, soaps.soaph, 0.018, *LONGER, decomposes=True),
    29: softened(3020, auroras.braked),
    30: aurora(3020, 3050),
    32: softened(3040, soaps.anchored, shares_and_pull),
    36: result_36(),
    37: result_37(),
    39: result_39(),
    40: result_40(),
}
"""The scripts, by the numbers of their results in the table of KellerJordan/modded-nanogpt."""
