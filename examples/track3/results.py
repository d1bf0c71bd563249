"""Results of track 3, with the hyperparameters and schedules of their logs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from examples.track3.families import (
    soap_muon_result,
    soft_muon_result,
    sphere_result,
    update_floor_result,
    weight_decay_result,
)
from examples.track3.modifiers import (
    anchor,
    ema_nesterov_tail,
    outer_nesterov,
    radial_brake,
    radial_step_and_decay,
    radial_step_norm,
)
from examples.track3.result import (
    ClassFactory,
    Group,
    Options,
    Result,
    matrix_groups,
    other_groups,
    spec_path,
)
from examples.track3.schedules import cooldown, with_warmup
from examples.track3.step_options import (
    aurora_options,
    look_ahead_39,
    look_ahead_40,
    shares,
    shares_and_pull,
    spectral_power,
    tail_share,
    trust,
)
from optgen import compose, load, modifiers
from optgen.optim import Adam, AdamW

MUON: ClassFactory = partial(load, spec_path("muon"))
NORMUON: ClassFactory = partial(load, spec_path("normuon"))
MUON_H: ClassFactory = partial(compose, spec_path("muon"), modifiers.hyperball)
KL_SOAP_H: ClassFactory = partial(compose, spec_path("klsoap"), modifiers.hyperball)
CONTRA_MUON: ClassFactory = partial(compose, spec_path("contra_muon"), modifiers.update_floor(0.35))
MULOCO = outer_nesterov(outer_lr=0.7, outer_mu=0.5, sync_interval=30)
EMA_NESTEROV = modifiers.ema_nesterov(move_decay=0.99)
TAIL = ema_nesterov_tail(move_decay=0.99)
FLOOR = modifiers.update_floor(0.3825)
ROW_FLOOR = modifiers.update_floor(0.3825, by_row=True)
BRAKE = radial_brake(0.5)


def adamw() -> Result:
    """Return result 2: AdamW everywhere. All rates grow during the first 250 steps."""
    schedule = with_warmup(250, cooldown(5625, 0.7))
    matrices = matrix_groups(0.0015, schedule, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.1)
    log = "a63a68d1-24aa-4a22-af9a-224e43209ea4.txt"
    return Result(2, "AdamW", log, 5625, lambda: AdamW, matrices, other_groups(schedule))


def adam_h() -> Result:
    """Return result 4: Adam whose matrices stay on a sphere."""
    log = "20260430_adamh/7533dd87-107f-4a4f-8229-acbec0fb00ac.txt"
    factory = partial(compose, Adam, modifiers.hyperball)
    after_warmup = cooldown(4875, 1.0)

    def schedule(step: float) -> float:
        return step / 250 if step < 250 else after_warmup(step)

    matrices = matrix_groups(0.018, schedule, betas=(0.9, 0.95), eps=1e-8)
    return Result(
        4, "AdamH", log, 4875, factory, matrices, other_groups(cooldown(4875, 0.4)), scaled=True
    )


def contra_split() -> Result:
    """Return result 24: Contra-Muon, with a schedule for matrices and one for all others."""
    log = "20260509_contra_muon_split_cooldown/c1af0bd1-6999-44d1-a618-3d1234ea32f0.txt"
    matrices, others = matrix_groups(0.0375, cooldown(3175, 0.8)), other_groups(cooldown(3175, 0.4))
    return Result(24, "Contra-Muon, split cooldown", log, 3175, CONTRA_MUON, matrices, others)


def trustlight() -> Result:
    """Return result 16: SOAP for the MLPs, and gated SOAP for the attention's projections."""
    schedule = cooldown(3175, 0.7)
    gated: Options = {"soap": True, "gated": True}
    kinds: dict[str, Options] = {"mlp.": {"soap": True}, "attn.proj.": gated, "": {}}
    matrices = {kind: Group(0.0375, schedule, options, trust) for kind, options in kinds.items()}
    factory = partial(compose, spec_path("trustlight"), modifiers.update_floor(0.35))
    log = "20260506_trustlight/fake_log_from_seed0.txt"
    others = other_groups(schedule)
    return Result(16, "Contra-Muon, gated SOAP", log, 3175, factory, matrices, others)


def newton_muon() -> Result:
    """Return result 15: Muon of gradients that are whitened by the inputs of their layers."""
    schedule = cooldown(3300, 0.7)
    rates = {"mlp.fc.": (0.03, 0.0375), "mlp.proj.": (0.03, 0.025), "attn.proj.": (0.025, 0.025)}
    matrices = {
        kind: Group(lr, schedule, {"weight_decay": decay})
        for kind, (lr, decay) in {**rates, "": (0.02, 0.025)}.items()
    }
    return Result(
        number=15,
        title="Newton-Muon",
        log="20260505_newton_muon/6fb302c7-d271-491b-906f-75cd6ec72075.txt",
        steps=3300,
        matrix_factory=partial(load, spec_path("newton_muon")),
        matrix_groups=matrices,
        other_groups=other_groups(schedule),
        covariance_interval=64,
    )


def contra_aurora() -> Result:
    """Return result 17: Contra-Muon of an orthogonal matrix whose lines have equal norms."""
    factory = partial(compose, spec_path("contra_aurora"), modifiers.update_floor(0.35))
    log = "20260505_aurora/298f02bc-dbb4-4661-9ad8-f6429d532873.txt"
    schedule = cooldown(3200, 0.7)
    matrices = matrix_groups(0.0375, schedule)
    return Result(17, "Contra-Muon, Aurora", log, 3175, factory, matrices, other_groups(schedule))


def dynmuon() -> Result:
    """Return result 28: Muon with a power of the momentum's singular values."""
    schedule = cooldown(3200, 0.7)
    matrices = {"": Group(0.02, schedule, {"weight_decay": 0.025}, spectral_power)}
    log = "20260519_dynmuon/50172610-d038-4f90-9a12-b9a0853f035d.txt"
    factory = partial(load, spec_path("dynmuon"))
    return Result(28, "DynMuon", log, 3175, factory, matrices, other_groups(schedule))


def muown() -> Result:
    """Return result 23: Muon for the directions of rows, and Adam for their norms."""
    schedule = cooldown(3165, 0.7, 0.9)
    norms = {"mlp.proj.": 2.496 * 3.33333333333, "": 2.496}
    matrices = {
        kind: Group(0.00325, schedule, {"last_norm": last_norm})
        for kind, last_norm in norms.items()
    }
    others = other_groups(schedule, rates=(0.6, 0.009375, 0.03))
    log = "20260508_muown/a26c8aa2-993d-443f-b931-845724d07015.txt"
    return Result(23, "Muown", log, 3090, partial(load, spec_path("muown")), matrices, others)


def kl_soap_powers() -> Result:
    """Return result 25: KL-SOAP-H whose rates fall to a floor as powers of the remaining steps."""
    log = "20260511_klsoap_h_lr_power_decay/01906576-8b3d-4bd2-a73f-23997f602ec1.txt"
    matrices = matrix_groups(0.018, cooldown(3125, 1.0, 1.5, 0.017))
    others = other_groups(cooldown(3125, 0.4, 1.5, 0.04))
    title = "KL-SOAP-H, PowerCool"
    return Result(25, title, log, 3040, KL_SOAP_H, matrices, others, scaled=True)


def soap_h() -> Result:
    """Return result 27: SOAP whose matrices stay on a sphere."""
    factory = partial(compose, spec_path("soap"), modifiers.hyperball)
    matrices = matrix_groups(0.018, cooldown(3200, 1.0, 1.25))
    others = other_groups(cooldown(3125, 0.4))
    log = "20260518_soaph/SOAPH_run1.txt"
    return Result(27, "SOAPH", log, 3125, factory, matrices, others, scaled=True)


def muon_tuned() -> Result:
    """Return result 36: Muon and AdamW with tuned rates."""
    log = "20260610_tuned_baseline_3250/263ea3c4-2b13-4adf-8a71-0410386b20e1.txt"
    schedule = cooldown(3250, 0.7)
    others = other_groups(schedule, rates=(0.7, 0.004, 0.015), weight_decay=0.001)
    matrices = matrix_groups(0.025, schedule, weight_decay=0.05)
    return Result(36, "Muon, tuned AdamW", log, 3250, MUON, matrices, others)


def muon_h_tuned() -> Result:
    """Return result 37: MuonH with tuned rates for AdamW."""
    log = "20260611_muonh_tuned_aux_3250/f6649181-6de2-4d67-b243-2b18adb9d594.txt"
    others = other_groups(cooldown(3250, 0.85), rates=(0.91, 0.0064, 0.0195), weight_decay=0.001)
    matrices = matrix_groups(0.018, cooldown(3250, 1.0))
    return Result(37, "MuonH, tuned AdamW", log, 3250, MUON_H, matrices, others, scaled=True)


def ema_nesterov() -> Result:
    """Return result 39: Muon and AdamW, which take gradients at a point ahead of the weights."""
    schedule = cooldown(3150, 0.7)
    matrices = {"": Group(0.035, schedule, {"weight_decay": 0.025}, look_ahead_39)}
    return Result(
        number=39,
        title="Muon in EMA-Nesterov",
        log="20260522_ema_nesterov_muon/4d9e83d4-4e3f-43d3-8aae-e3a9031586be.txt",
        steps=3150,
        matrix_factory=partial(compose, spec_path("muon"), EMA_NESTEROV),
        matrix_groups=matrices,
        other_groups=other_groups(schedule, step_options=look_ahead_39),
        other_factory=partial(compose, AdamW, EMA_NESTEROV),
    )


def aurora_ahead() -> Result:
    """Return result 40: result 30, with gradients at a point ahead of the weights."""
    result = soft_muon_result(
        number=40,
        title="Aurora in EMA-Nesterov",
        log="20260522_ema_nesterov_aurora_proj/345b51b2-38ee-4a78-af2c-bb96cb68470d.txt",
        steps=2900,
        factory=partial(compose, spec_path("aurora"), BRAKE, FLOOR, radial_step_norm, EMA_NESTEROV),
        step_options=lambda step: {**aurora_options(2900)(step), **look_ahead_40(step)},
        end=2980,
        beta2=0.99,
        others_step_options=look_ahead_40,
    )
    return replace(result, other_factory=partial(compose, AdamW, EMA_NESTEROV))


RESULTS: dict[str, Result] = {
    "muon_lr20": weight_decay_result(
        1, "Muon, lr 0.02", "7b8270c5-a9cd-4a73-b7d8-5d86a2d1e428.txt", 3600, MUON, 0.02, 0.01
    ),
    "adamw": adamw(),
    "muon_lr25": weight_decay_result(
        3, "Muon, lr 0.025", "311d7833-8dfc-43ea-a55c-fd313a11c4a8.txt", 3500, MUON, 0.025, 0.0125
    ),
    "adam_h": adam_h(),
    "muon_h": sphere_result(
        5, "MuonH", "20260430_muonh/9319c798-6643-464a-b407-b05468e468f5.txt", 3325, MUON_H
    ),
    "muon_decay": weight_decay_result(
        6, "Muon, decay 0.025", "51ece938-03c5-4343-8dcc-3f3336b07008.txt", 3375, MUON, 0.025, 0.025
    ),
    "muon_squared": weight_decay_result(
        number=7,
        title="Muon²",
        log="20260501_muonsq/bb903816-ea27-4f5f-8028-c963d38c6a7f.txt",
        steps=3325,
        factory=partial(load, spec_path("muon_squared")),
        lr=0.1,
        decay=0.0125,
    ),
    "normuon_h": sphere_result(
        number=8,
        title="NorMuonH",
        log="20260430_normuonh/f45b5dcf-16bb-4e83-b5c7-4ef4981f0e9f.txt",
        steps=3275,
        factory=partial(compose, spec_path("normuon"), modifiers.hyperball),
    ),
    "normuon_floor": update_floor_result(
        number=9,
        title="NorMuon, update floor",
        log="20260501_skylight001/f78af80a-2ba3-4cf7-b9f7-e6e56ff2c54d.txt",
        steps=3250,
        factory=partial(compose, spec_path("normuon"), modifiers.update_floor(0.35)),
    ),
    "normuon": weight_decay_result(
        number=10,
        title="NorMuon",
        log="20260503_normuon/e0d0185f-ccb8-426d-8265-a4e762ec69f6.txt",
        steps=3300,
        factory=NORMUON,
        lr=0.035,
        decay=0.025,
    ),
    "contra_muon": update_floor_result(
        number=11,
        title="Contra-Muon",
        log="20260501_contra_muon/08cd60f9-99e2-4e28-b1ac-19136dd42a05.txt",
        steps=3225,
        factory=CONTRA_MUON,
    ),
    "muon_lr35": weight_decay_result(
        12, "Muon, lr 0.035", "1bd8db7a-f3a3-4195-856d-cab7e0816443.txt", 3350, MUON, 0.035, 0.025
    ),
    "muloco": sphere_result(
        number=13,
        title="NorMuonH in MuLoCo",
        log="20260504_muloco_normuonh/7fba9434-58d8-4166-b6a7-d62ef8d17e5d.txt",
        steps=3210,
        factory=partial(compose, spec_path("normuon"), modifiers.hyperball, MULOCO),
        other_factory=partial(compose, AdamW, MULOCO),
    ),
    "contra_soap": update_floor_result(
        14,
        "Contra-Muon, SOAP for MLPs",
        "20260504_contra_muon_mlp_soapish/0248394b-0d6c-4133-9ff7-e7ff2763cdd9.txt",
        3175,
        partial(compose, spec_path("contra_soap"), modifiers.update_floor(0.35)),
        "mlp.",
    ),
    "newton_muon": newton_muon(),
    "trustlight": trustlight(),
    "contra_aurora": contra_aurora(),
    "pmuon": weight_decay_result(
        number=18,
        title="PMuon",
        log="20260507_pmuon/54fc0541-7a62-4772-a8f8-d3a46ad10dba.txt",
        steps=3250,
        factory=partial(load, spec_path("pmuon")),
        lr=0.035,
        decay=0.025,
    ),
    "kl_soap_h": sphere_result(
        number=19,
        title="KL-SOAP-H",
        log="20260508_klsoap_h_clean_tuple_sweep/b1095_sh090/"
        "klsoap-h-b1095_sh090-K3125-seed-1.full.txt",
        steps=3125,
        factory=KL_SOAP_H,
    ),
    "soft_muon": soft_muon_result(
        number=20,
        title="Contra-Muon to Soft-Muon",
        log="20260509_contra_soft_muon/03c36e81-e2e5-4916-bf16-0141999b1dbb.txt",
        steps=3040,
        factory=partial(compose, spec_path("soft_muon"), FLOOR),
        step_options=shares,
    ),
    "shampoo": weight_decay_result(
        number=21,
        title="Shampoo",
        log="20260513_shampoo_1_4_power/503575c5-6dde-425a-b461-2df4d99db974.txt",
        steps=4150,
        factory=partial(load, spec_path("shampoo")),
        lr=0.0015,
        decay=0.2,
    ),
    "spectral_descent": weight_decay_result(
        number=22,
        title="spectral descent",
        log="20260517_ortho/d5098d67-7c1b-47b4-8833-80960d633d33.txt",
        steps=8500,
        factory=MUON,
        lr=0.03,
        decay=0.015,
        momentum=0.0,
    ),
    "muown": muown(),
    "contra_split": contra_split(),
    "kl_soap_powers": kl_soap_powers(),
    "sinksoap": weight_decay_result(
        number=26,
        title="SinkSOAP",
        log="20260514_sinksoap/d0155dd0-f77d-48a9-8eb4-453f894b9476.txt",
        steps=3125,
        factory=partial(load, spec_path("sinksoap")),
        lr=0.04,
        decay=0.025,
    ),
    "soap_h": soap_h(),
    "dynmuon": dynmuon(),
    "radial_brake": soft_muon_result(
        number=29,
        title="Soft-Muon, radial brake",
        log="20260511_dampen_radial_gradient_component/00882c75-914d-4340-8e0b-dcffcb18b73d.txt",
        steps=3020,
        factory=partial(compose, spec_path("soft_muon"), BRAKE, FLOOR, radial_step_norm),
        step_options=shares,
    ),
    "aurora": soft_muon_result(
        number=30,
        title="Aurora, radial brake",
        log="20260514_aurora_proj_pruned_extended_contra/d198124d-5e7f-4743-a683-0eb936a40dbe.txt",
        steps=3020,
        factory=partial(compose, spec_path("aurora"), BRAKE, FLOOR, radial_step_norm),
        step_options=aurora_options(3020),
        end=3050,
        beta2=0.99,
    ),
    "anchored": soft_muon_result(
        number=32,
        title="Soft-Muon, SODA's anchor",
        log="20260518_soda_fade_3000_n9/code_logs/0fdbe617-37dd-470d-b033-b6ec24fc13fc.txt",
        steps=3040,
        factory=partial(compose, spec_path("soft_muon"), FLOOR, anchor),
        step_options=shares_and_pull,
    ),
    "muon_tuned": muon_tuned(),
    "muon_h_tuned": muon_h_tuned(),
    "ema_nesterov": ema_nesterov(),
    "aurora_ahead": aurora_ahead(),
    "soap_muon": soap_muon_result(
        number=44,
        title="SOAP-Muon",
        log="20260609_soap_f1_auxb2_clean/H100_ff29b392-e7b7-453e-b9d5-a7dfe0605dd0.txt",
        factory=partial(
            compose, spec_path("soap_muon"), BRAKE, FLOOR, radial_step_norm, EMA_NESTEROV
        ),
        average=EMA_NESTEROV,
    ),
    "row_floor": soap_muon_result(
        number=46,
        title="SOAP-Muon, floor of rows",
        log="20260619_cwd_rowfloor_tailema/A40_seed0_5c87fa44-7ca7-4d54-971d-d952f9b15792.txt",
        factory=partial(
            compose, spec_path("soap_muon"), BRAKE, ROW_FLOOR, radial_step_and_decay, TAIL
        ),
        average=TAIL,
        average_options=tail_share,
    ),
}
"""The results by the names that the command takes."""
