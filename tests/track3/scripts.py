"""The training scripts whose logs are results of the optimizer contest "track 3" (modded-nanogpt).

The file has their numbers, and their steps in plain torch.

Numbers are repeated here from the logs, so that a wrong one in `examples/track3` is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor
from track3 import auroras, muons, soaps
from track3.muons import Values
from track3.script import NamedOptions, Schedule, Script, Step, adamw, no_options


def cooldown(steps: int, share: float, power: float = 1.0, low: float = 0.0) -> Schedule:
    """Return a schedule that is 1, and falls to `low` in the last `share` of the steps."""

    def eta(step: int) -> float:
        progress = step / steps
        if progress < 1 - share:
            return 1.0
        return low + (1 - low) * ((1 - progress) / share) ** power

    return eta


def script_with_decay(steps: int, step: Step, lr: float, decay: float) -> Script:
    """Return a script whose matrices decay, with one schedule of all learning rates."""
    eta = cooldown(steps, 0.7)
    return Script(steps, step, lr, eta, (eta,), options={"weight_decay": decay})


def script_on_sphere(steps: int, step: Step, **fields: object) -> Script:
    """Return a script whose matrices keep their norms."""
    adamw_schedule = cooldown(steps, 0.4)
    return Script(steps, step, 0.018, cooldown(steps, 1.0), (adamw_schedule,), **fields)  # type: ignore[arg-type]


def script_with_floor(
    steps: int,
    step: Step,
    named_options: NamedOptions = (),
    options_at: Callable[[int], Values] = no_options,
) -> Script:
    """Return a script without weight decay, in which no update has a smaller size than a floor."""
    eta = cooldown(steps, 0.7)
    decomposes = bool(named_options)
    return Script(
        steps,
        step,
        0.0375,
        eta,
        (eta,),
        named_options,
        options_at=options_at,
        decomposes=decomposes,
    )


def result_2() -> Script:
    eta = cooldown(5625, 0.7)

    def warmed_up(step: int) -> float:
        return min(1.0, (step + 1) / 250) * eta(step)

    options = {"betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0.1}
    return Script(5625, adamw, 0.0015, warmed_up, (warmed_up,), options=options)


def result_4() -> Script:
    def schedule(step: int) -> float:
        return step / 250 if step < 250 else 1 - step / 4875

    return Script(4875, muons.adamh, 0.018, schedule, (cooldown(4875, 0.4),))


def result_13() -> Script:
    outer = partial(muons.outer_nesterov, lr=0.7, momentum=0.5, interval=30)
    return script_on_sphere(3210, muons.normuonh, after_step=outer, test_steps=65)


def trust_options(step: int) -> Values:
    return {"trust": soaps.trust_bounds(step)}


def power_schedule(coefficient: float, lr: float, end: int = 3105) -> Schedule:
    return lambda step: min(lr, coefficient * max(0.0, end - step) ** 1.2) / lr


def blend_options(step: int) -> Values:
    soft = min(0.8, max(0.0, (step - 2500) / (3010 - 2500)))
    return {"contra": 0.2 * (1 - min(1.0, step / 2000)), "soft": soft}


def blend_and_pull_options(step: int) -> Values:
    pull = 1.0 if step < 2000 else 0.0
    if 2000 <= step < 2750:
        pull = 0.5 * (1 + math.cos(math.pi * (step - 2000) / (2750 - 2000)))
    return {**blend_options(step), "pull": pull}


def script_with_softening(
    steps: int, step: Step, options_at: Callable[[int], Values] = blend_options, end: int = 3105
) -> Script:
    """Return result 20's script, or one that adds to it."""
    adamw_schedules = (
        power_schedule(4.976805410800738e-05, 0.3, end),
        power_schedule(5.184172302917436e-07, 1 / 320, end),
        power_schedule(1.6589351369335795e-06, 0.01, end),
    )
    named_options = (
        ("mlp.fc", {"soap": True}),
        ("mlp.proj", {"soap": True}),
        ("attn.v", {"soap": True, "value": True}),
    )
    schedule = power_schedule(3.3169534699576625e-06, 0.0375, end)
    return Script(
        steps,
        step,
        0.0375,
        schedule,
        adamw_schedules,
        named_options,
        options_at=options_at,
        decomposes=True,
    )


def aurora_script(steps: int, end: int) -> Script:
    """Return result 30's script: momentum grows and falls, and AdamW's beta2 is 0.99."""

    def options_at(step: int) -> Values:
        mu = 0.95
        if step < 300:
            mu = 0.85 + step / 300 * (0.95 - 0.85)
        elif step > steps - 100:
            mu = 0.95 - (step - (steps - 100)) / 100 * (0.95 - 0.85)
        return {"momentum": mu, "contra": 0.2 * (1 - min(1.0, step / 2500))}

    return replace(
        script_with_softening(steps, auroras.aurora_muon, options_at, end), adamw_beta2=0.99
    )


def result_36() -> Script:
    eta = cooldown(3250, 0.7)
    return Script(
        3250,
        muons.muon,
        0.025,
        eta,
        (eta,),
        options={"weight_decay": 0.05},
        adamw_lrs=(0.7, 0.004, 0.015),
        adamw_weight_decay=0.001,
    )


def result_37() -> Script:
    schedule, adamw_schedule = cooldown(3250, 1.0), cooldown(3250, 0.85)
    return Script(
        3250,
        muons.muonh,
        0.018,
        schedule,
        (adamw_schedule,),
        adamw_lrs=(0.91, 0.0064, 0.0195),
        adamw_weight_decay=0.001,
    )


def look_ahead_of_result_39(step: int) -> Values:
    """Return how far result 39 extrapolates after this step, scaled by the schedule."""
    next_step = step + 1
    looks_ahead = next_step + 1 > 500 and next_step < 3150 - 750
    return {"look_ahead": 0.6 * cooldown(3150, 0.7)(step) if looks_ahead else 0.0}


def result_39() -> Script:
    def after_step(p: Tensor, memory: Values, step: int) -> Tensor:
        return muons.extrapolate(p, memory, **look_ahead_of_result_39(step))

    muon = script_with_decay(3150, muons.muon, 0.035, 0.025)
    return replace(muon, options_at=look_ahead_of_result_39, after_step=after_step, test_steps=24)


def soap_muon_script(step: Step, tail: bool = False) -> Script:
    """Return result 44's script, or 46's, which also keeps a mean of the last weights."""
    inner = script_with_softening(2900, step, end=2900)

    def all_options(step: int) -> Values:
        mu = 0.95
        if step < 300:
            mu = 0.85 + step / 300 * (0.95 - 0.85)
        elif step > 2700:
            mu = 0.95 - (step - 2700) / 200 * (0.95 - 0.85)
        looks_ahead = step + 2 > 300 and step + 1 < 2900 - 950
        ahead = 0.3 * inner.adamw_schedules[0](step) if looks_ahead else 0.0
        share = 1.0 if step + 1 <= 2400 else 1 / 150 if step + 1 < 2900 else 0.0
        options = {"momentum": mu, "look_ahead": ahead, **trust_options(step)}
        return {**options, "tail_share": share} if tail else options

    def after_step(p: Tensor, memory: Values, step: int) -> Tensor:
        return muons.extrapolate(p, memory, all_options(step)["look_ahead"])

    return replace(
        inner,
        named_options=(("attn.proj", {"gated": True}),),
        options_at=all_options,
        adamw_beta2=0.99,
        vector_step=muons.uncorrected_adam,
        vector_beta2s=((".gains", 0.99), ("attn.proj.bias", 0.9965), ("", 0.997)),
        after_step=after_step,
        test_steps=24,
    )


def result_40() -> Script:
    inner = aurora_script(2900, 2980)

    def look_ahead_options(step: int) -> Values:
        next_step = step + 1
        looks_ahead = next_step + 1 > 300 and next_step < 2900 - 950
        return {"look_ahead": 0.3 * inner.adamw_schedules[0](step) if looks_ahead else 0.0}

    def after_step(p: Tensor, memory: Values, step: int) -> Tensor:
        return muons.extrapolate(p, memory, **look_ahead_options(step))

    def options_at(step: int) -> Values:
        return {**inner.options_at(step), **look_ahead_options(step)}

    return replace(inner, options_at=options_at, after_step=after_step, test_steps=24)


def result_28() -> Script:
    def options_at(step: int) -> Values:
        anneal = 1.0 / (1.0 + math.exp((step / 3200 - 0.04) / 0.04))
        return {"spectral_power": -0.25 + (0.25 + 0.25) * anneal}

    decay = {"weight_decay": 0.025}
    return Script(3175, muons.dynmuon, 0.02, *SCHEDULES_3200, options=decay, options_at=options_at)


def result_15() -> Script:
    kinds = (
        ("attn.proj", {"lr": 0.025}),
        ("mlp.fc", {"lr": 0.03, "weight_decay": 0.0375}),
        ("mlp.proj", {"lr": 0.03}),
    )
    script = script_with_decay(3300, muons.newton_muon, 0.02, 0.025)
    return replace(script, named_options=kinds, reads_inputs=True)


def result_23() -> Script:
    eta = cooldown(3165, 0.7, 0.9)
    kinds = (("mlp.proj.weight", {"last_norm": 2.496 * 3.33333333333}),)
    return Script(
        3090,
        muons.muown,
        0.00325,
        eta,
        (eta,),
        kinds,
        options={"last_norm": 2.496},
        adamw_lrs=(0.6, 0.009375, 0.03),
    )


SCHEDULES_3200 = cooldown(3200, 0.7), (cooldown(3200, 0.7),)
SOAP, GATED_SOAP = {"soap": True}, {"soap": True, "gated": True}
SOAP_MLPS: NamedOptions = (("mlp.fc", SOAP), ("mlp.proj", SOAP))
SCHEDULES_24 = cooldown(3175, 0.8), (cooldown(3175, 0.4),)
SCHEDULES_25 = cooldown(3125, 1.0, 1.5, 0.017), (cooldown(3125, 0.4, 1.5, 0.04),)
SCHEDULES_27 = cooldown(3200, 1.0, 1.25), (cooldown(3125, 0.4),)
"""Schedules of the matrices, and of AdamW, in the script of the result with this number."""

SCRIPTS: dict[int, Script] = {
    1: script_with_decay(3600, muons.muon, 0.02, 0.01),
    2: result_2(),
    3: script_with_decay(3500, muons.muon, 0.025, 0.0125),
    4: result_4(),
    5: script_on_sphere(3325, muons.muonh),
    6: script_with_decay(3375, muons.muon, 0.025, 0.025),
    7: script_with_decay(3325, muons.muon_squared, 0.1, 0.0125),
    8: script_on_sphere(3275, muons.normuonh),
    9: script_with_floor(3250, muons.skylight),
    10: script_with_decay(3300, muons.normuon, 0.035, 0.025),
    11: script_with_floor(3225, muons.contra_muon),
    12: script_with_decay(3350, muons.muon, 0.035, 0.025),
    13: result_13(),
    14: script_with_floor(3175, soaps.contra_soap, SOAP_MLPS),
    15: result_15(),
    16: script_with_floor(
        3175, soaps.trustlight, (*SOAP_MLPS, ("attn.proj", GATED_SOAP)), trust_options
    ),
    17: Script(3175, auroras.contra_aurora, 0.0375, *SCHEDULES_3200),
    18: replace(script_with_decay(3250, soaps.pmuon, 0.035, 0.025), decomposes=True),
    19: script_on_sphere(3125, soaps.klsoaph, decomposes=True),
    20: script_with_softening(3040, soaps.soft_muon),
    21: script_with_decay(4150, soaps.shampoo, 0.0015, 0.2),
    22: script_with_decay(8500, muons.spectral_descent, 0.03, 0.015),
    23: result_23(),
    24: Script(3175, muons.contra_muon, 0.0375, *SCHEDULES_24),
    25: Script(3040, soaps.klsoaph, 0.018, *SCHEDULES_25, decomposes=True),
    26: replace(script_with_decay(3125, soaps.sinksoap, 0.04, 0.025), decomposes=True),
    27: Script(3125, soaps.soaph, 0.018, *SCHEDULES_27, decomposes=True),
    28: result_28(),
    29: script_with_softening(3020, auroras.braked_muon),
    30: aurora_script(3020, 3050),
    32: script_with_softening(3040, soaps.anchored_muon, blend_and_pull_options),
    36: result_36(),
    37: result_37(),
    39: result_39(),
    40: result_40(),
    44: soap_muon_script(auroras.soap_muon),
    46: soap_muon_script(auroras.soap_muon_with_row_floor, tail=True),
}
"""The scripts, by the numbers of their results in the table of KellerJordan/modded-nanogpt."""
