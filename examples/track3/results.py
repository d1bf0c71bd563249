"""Results of track 3, with the hyperparameters and schedules of their logs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from examples.track3 import modifiers as ours
from examples.track3.changing import (
    aurora_options,
    look_ahead_39,
    look_ahead_40,
    shares,
    shares_and_pull,
    trust,
)
from examples.track3.families import decayed, floored, on_sphere, softened
from examples.track3.result import ClassFactory, Group, Options, Result, matrices, others, spec
from examples.track3.schedules import cooled, warmed
from optgen import compose, load, modifiers
from optgen.optim import Adam, AdamW

MUON: ClassFactory = partial(load, spec("muon"))
NORMUON: ClassFactory = partial(load, spec("normuon"))
MUON_H: ClassFactory = partial(compose, spec("muon"), modifiers.hyperball)
KL_SOAP_H: ClassFactory = partial(compose, spec("klsoap"), modifiers.hyperball)
CONTRA_MUON: ClassFactory = partial(compose, spec("contra_muon"), modifiers.update_floor(0.35))
MULOCO = ours.outer_nesterov(outer_lr=0.7, outer_mu=0.5, sync_interval=30)
AHEAD = modifiers.ema_nesterov(move_decay=0.99)
FLOOR = modifiers.update_floor(0.3825)
BRAKE = ours.radial_brake(0.5)


def adamw() -> Result:
    """Return result 2: AdamW everywhere. All rates grow during the first 250 steps."""
    schedule = warmed(250, cooled(5625, 0.7))
    hidden = matrices(0.0015, schedule, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.1)
    log = "a63a68d1-24aa-4a22-af9a-224e43209ea4.txt"
    return Result(2, "AdamW", log, 5625, lambda: AdamW, hidden, others(schedule))


def adam_h() -> Result:
    """Return result 4: Adam on the sphere of the weights."""
    log = "20260430_adamh/7533dd87-107f-4a4f-8229-acbec0fb00ac.txt"
    rule = partial(compose, Adam, modifiers.hyperball)
    falls = cooled(4875, 1.0)

    def schedule(step: float) -> float:
        return step / 250 if step < 250 else falls(step)

    hidden = matrices(0.018, schedule, betas=(0.9, 0.95), eps=1e-8)
    return Result(4, "AdamH", log, 4875, rule, hidden, others(cooled(4875, 0.4)), scaled=True)


def contra_split() -> Result:
    """Return result 24: Contra-Muon, with a schedule for the matrices and one for the rest."""
    log = "20260509_contra_muon_split_cooldown/c1af0bd1-6999-44d1-a618-3d1234ea32f0.txt"
    hidden, rest = matrices(0.0375, cooled(3175, 0.8)), others(cooled(3175, 0.4))
    return Result(24, "Contra-Muon, split cooldown", log, 3175, CONTRA_MUON, hidden, rest)


def trustlight() -> Result:
    """Return result 16: SOAP for the MLPs, and through a gate for the attention's projections."""
    schedule = cooled(3175, 0.7)
    gated: Options = {"soap": True, "gated": True}
    kinds: dict[str, Options] = {"mlp.": {"soap": True}, "attn.proj.": gated, "": {}}
    hidden = {kind: Group(0.0375, schedule, options, trust) for kind, options in kinds.items()}
    rule = partial(compose, spec("trustlight"), modifiers.update_floor(0.35))
    log = "20260506_trustlight/fake_log_from_seed0.txt"
    return Result(16, "Contra-Muon, gated SOAP", log, 3175, rule, hidden, others(schedule))


def kl_soap_powers() -> Result:
    """Return result 25: KL-SOAP-H whose rates fall to a floor as powers of the remaining steps."""
    log = "20260511_klsoap_h_lr_power_decay/01906576-8b3d-4bd2-a73f-23997f602ec1.txt"
    hidden = matrices(0.018, cooled(3125, 1.0, 1.5, 0.017))
    rest = others(cooled(3125, 0.4, 1.5, 0.04))
    title = "KL-SOAP-H, PowerCool"
    return Result(25, title, log, 3040, KL_SOAP_H, hidden, rest, scaled=True)


def soap_h() -> Result:
    """Return result 27: SOAP on the sphere of the weights."""
    rule = partial(compose, spec("soap"), modifiers.hyperball)
    hidden, rest = matrices(0.018, cooled(3200, 1.0, 1.25)), others(cooled(3125, 0.4))
    log = "20260518_soaph/SOAPH_run1.txt"
    return Result(27, "SOAPH", log, 3125, rule, hidden, rest, scaled=True)


def muon_tuned() -> Result:
    """Return result 36: Muon and AdamW with tuned rates."""
    log = "20260610_tuned_baseline_3250/263ea3c4-2b13-4adf-8a71-0410386b20e1.txt"
    schedule = cooled(3250, 0.7)
    rest = others(schedule, rates=(0.7, 0.004, 0.015), weight_decay=0.001)
    hidden = matrices(0.025, schedule, weight_decay=0.05)
    return Result(36, "Muon, tuned AdamW", log, 3250, MUON, hidden, rest)


def muon_h_tuned() -> Result:
    """Return result 37: MuonH with tuned rates for AdamW."""
    log = "20260611_muonh_tuned_aux_3250/f6649181-6de2-4d67-b243-2b18adb9d594.txt"
    rest = others(cooled(3250, 0.85), rates=(0.91, 0.0064, 0.0195), weight_decay=0.001)
    hidden = matrices(0.018, cooled(3250, 1.0))
    return Result(37, "MuonH, tuned AdamW", log, 3250, MUON_H, hidden, rest, scaled=True)


def ema_nesterov() -> Result:
    """Return result 39: Muon and AdamW, whose gradients are taken ahead of the weights."""
    schedule = cooled(3150, 0.7)
    hidden = {"": Group(0.035, schedule, {"weight_decay": 0.025}, look_ahead_39)}
    return Result(
        number=39,
        title="Muon in EMA-Nesterov",
        log="20260522_ema_nesterov_muon/4d9e83d4-4e3f-43d3-8aae-e3a9031586be.txt",
        steps=3150,
        matrices=partial(compose, spec("muon"), AHEAD),
        hidden=hidden,
        others=others(schedule, changing=look_ahead_39),
        rest=partial(compose, AdamW, AHEAD),
    )


def aurora_ahead() -> Result:
    """Return result 40: result 30, whose gradients are taken ahead of the weights."""
    result = softened(
        number=40,
        title="Aurora in EMA-Nesterov",
        log="20260522_ema_nesterov_aurora_proj/345b51b2-38ee-4a78-af2c-bb96cb68470d.txt",
        steps=2900,
        rule=partial(compose, spec("aurora"), BRAKE, FLOOR, ours.meant_radius, AHEAD),
        changing=lambda step: {**aurora_options(2900)(step), **look_ahead_40(step)},
        end=2980,
        beta2=0.99,
        others_changing=look_ahead_40,
    )
    return replace(result, rest=partial(compose, AdamW, AHEAD))


RESULTS: dict[str, Result] = {
    "muon_lr20": decayed(
        1, "Muon, lr 0.02", "7b8270c5-a9cd-4a73-b7d8-5d86a2d1e428.txt", 3600, MUON, 0.02, 0.01
    ),
    "adamw": adamw(),
    "muon_lr25": decayed(
        3, "Muon, lr 0.025", "311d7833-8dfc-43ea-a55c-fd313a11c4a8.txt", 3500, MUON, 0.025, 0.0125
    ),
    "adam_h": adam_h(),
    "muon_h": on_sphere(
        5, "MuonH", "20260430_muonh/9319c798-6643-464a-b407-b05468e468f5.txt", 3325, MUON_H
    ),
    "muon_decay": decayed(
        6, "Muon, decay 0.025", "51ece938-03c5-4343-8dcc-3f3336b07008.txt", 3375, MUON, 0.025, 0.025
    ),
    "muon_squared": decayed(
        number=7,
        title="Muon²",
        log="20260501_muonsq/bb903816-ea27-4f5f-8028-c963d38c6a7f.txt",
        steps=3325,
        rule=partial(load, spec("muon_squared")),
        lr=0.1,
        decay=0.0125,
    ),
    "normuon_h": on_sphere(
        number=8,
        title="NorMuonH",
        log="20260430_normuonh/f45b5dcf-16bb-4e83-b5c7-4ef4981f0e9f.txt",
        steps=3275,
        rule=partial(compose, spec("normuon"), modifiers.hyperball),
    ),
    "normuon_floor": floored(
        number=9,
        title="NorMuon, update floor",
        log="20260501_skylight001/f78af80a-2ba3-4cf7-b9f7-e6e56ff2c54d.txt",
        steps=3250,
        rule=partial(compose, spec("normuon"), modifiers.update_floor(0.35)),
    ),
    "normuon": decayed(
        number=10,
        title="NorMuon",
        log="20260503_normuon/e0d0185f-ccb8-426d-8265-a4e762ec69f6.txt",
        steps=3300,
        rule=NORMUON,
        lr=0.035,
        decay=0.025,
    ),
    "contra_muon": floored(
        number=11,
        title="Contra-Muon",
        log="20260501_contra_muon/08cd60f9-99e2-4e28-b1ac-19136dd42a05.txt",
        steps=3225,
        rule=CONTRA_MUON,
    ),
    "muon_lr35": decayed(
        12, "Muon, lr 0.035", "1bd8db7a-f3a3-4195-856d-cab7e0816443.txt", 3350, MUON, 0.035, 0.025
    ),
    "muloco": on_sphere(
        number=13,
        title="NorMuonH in MuLoCo",
        log="20260504_muloco_normuonh/7fba9434-58d8-4166-b6a7-d62ef8d17e5d.txt",
        steps=3210,
        rule=partial(compose, spec("normuon"), modifiers.hyperball, MULOCO),
        rest=partial(compose, AdamW, MULOCO),
    ),
    "contra_soap": floored(
        14,
        "Contra-Muon, SOAP for MLPs",
        "20260504_contra_muon_mlp_soapish/0248394b-0d6c-4133-9ff7-e7ff2763cdd9.txt",
        3175,
        partial(compose, spec("contra_soap"), modifiers.update_floor(0.35)),
        "mlp.",
    ),
    "trustlight": trustlight(),
    "kl_soap_h": on_sphere(
        number=19,
        title="KL-SOAP-H",
        log="20260508_klsoap_h_clean_tuple_sweep/b1095_sh090/"
        "klsoap-h-b1095_sh090-K3125-seed-1.full.txt",
        steps=3125,
        rule=KL_SOAP_H,
    ),
    "soft_muon": softened(
        number=20,
        title="Contra-Muon to Soft-Muon",
        log="20260509_contra_soft_muon/03c36e81-e2e5-4916-bf16-0141999b1dbb.txt",
        steps=3040,
        rule=partial(compose, spec("soft_muon"), FLOOR),
        changing=shares,
    ),
    "shampoo": decayed(
        number=21,
        title="Shampoo",
        log="20260513_shampoo_1_4_power/503575c5-6dde-425a-b461-2df4d99db974.txt",
        steps=4150,
        rule=partial(load, spec("shampoo")),
        lr=0.0015,
        decay=0.2,
    ),
    "spectral_descent": decayed(
        number=22,
        title="spectral descent",
        log="20260517_ortho/d5098d67-7c1b-47b4-8833-80960d633d33.txt",
        steps=8500,
        rule=MUON,
        lr=0.03,
        decay=0.015,
        momentum=0.0,
    ),
    "contra_split": contra_split(),
    "kl_soap_powers": kl_soap_powers(),
    "soap_h": soap_h(),
    "radial_brake": softened(
        number=29,
        title="Soft-Muon, radial brake",
        log="20260511_dampen_radial_gradient_component/00882c75-914d-4340-8e0b-dcffcb18b73d.txt",
        steps=3020,
        rule=partial(compose, spec("soft_muon"), BRAKE, FLOOR, ours.meant_radius),
        changing=shares,
    ),
    "aurora": softened(
        number=30,
        title="Aurora, radial brake",
        log="20260514_aurora_proj_pruned_extended_contra/d198124d-5e7f-4743-a683-0eb936a40dbe.txt",
        steps=3020,
        rule=partial(compose, spec("aurora"), BRAKE, FLOOR, ours.meant_radius),
        changing=aurora_options(3020),
        end=3050,
        beta2=0.99,
    ),
    "anchored": softened(
        number=32,
        title="Soft-Muon, SODA's anchor",
        log="20260518_soda_fade_3000_n9/code_logs/0fdbe617-37dd-470d-b033-b6ec24fc13fc.txt",
        steps=3040,
        rule=partial(compose, spec("soft_muon"), FLOOR, ours.anchor),
        changing=shares_and_pull,
    ),
    "muon_tuned": muon_tuned(),
    "muon_h_tuned": muon_h_tuned(),
    "ema_nesterov": ema_nesterov(),
    "aurora_ahead": aurora_ahead(),
}
"""The results by the names that the command takes."""
