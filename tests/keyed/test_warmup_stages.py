"""Test the factors of a warm-up's stages: torchrec's, and right ones where torchrec fails."""

import math
from typing import Any

import pytest

from optgen.keyed import WarmupPolicy, WarmupStage
from optgen.keyed.warmup import complete_stages, stage_factor

COSINE = WarmupPolicy.COSINE_ANNEALING_WARM_RESTARTS


def factors(count: int, *stages: WarmupStage) -> list[float]:
    """Return the factors of the first steps of a list of stages."""
    all_stages = complete_stages(stages, None)
    stage_of_step = [next(s for s in all_stages if i <= s.max_iters) for i in range(count)]
    return [stage_factor(stage, i) for i, stage in enumerate(stage_of_step)]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ({"policy": WarmupPolicy.NONE, "max_iters": 2}, [1, 1, 1]),
        ({"policy": WarmupPolicy.LINEAR, "max_iters": 4, "value": 0.2}, [0.2, 0.4, 0.6, 0.8, 1]),
        ({"policy": WarmupPolicy.CONSTANT, "max_iters": 2, "value": 0.3}, [0.3, 0.3, 0.3]),
        ({"policy": WarmupPolicy.POLY, "max_iters": 4, "value": 2.0}, [1, 0.5625, 0.25, 0.0625, 0]),
        ({"policy": WarmupPolicy.POLY, "max_iters": 2, "decay_iters": 4}, [1, 0.75, 0.5]),
        ({"policy": WarmupPolicy.STEP, "max_iters": 3, "value": 0.5}, [1, 0.5, 0.25, 0.125]),
        (
            {"policy": WarmupPolicy.STEP, "max_iters": 4, "value": 0.5, "decay_iters": 2},
            [1, 1, 0.5, 0.5, 0.25],
        ),
        ({"policy": WarmupPolicy.INVSQRT, "max_iters": 4}, [1, 1, 0.5**0.5, 3**-0.5, 0.5]),
        (
            {"policy": COSINE, "max_iters": 5, "value": 0.2, "sgdr_period": 4},
            [1, 0.6 + 0.4 * math.sqrt(0.5), 0.6, 0.6 - 0.4 * math.sqrt(0.5), 1],
        ),
        (
            {
                "policy": WarmupPolicy.INTERPOLATE,
                "max_iters": 4,
                "value": 0.1,
                "end_value": 0.5,
                "start_interpolating_iters": 2,
            },
            [0.1, 0.1, 0.1, 0.3, 0.5],
        ),
    ],
    ids=lambda each: each["policy"].value if isinstance(each, dict) else "",
)
def test_each_policy_has_its_factors(stage: dict[str, Any], expected: list[float]) -> None:
    found = factors(len(expected), WarmupStage(**stage))
    scaled = factors(len(expected), WarmupStage(**stage, lr_scale=3.0))

    assert found == pytest.approx(expected, rel=1e-14)
    assert scaled == pytest.approx([3.0 * each for each in expected], rel=1e-14)


def test_policies_have_torchrecs_names() -> None:
    assert [policy.value for policy in WarmupPolicy] == [
        "none",
        "linear",
        "constant",
        "poly",
        "step",
        "inv_sqrt",
        "cosine_annealing_warm_restarts",
        "interpolate",
    ]


def test_the_factor_is_constant_after_a_decay() -> None:
    poly = WarmupStage(WarmupPolicy.POLY, max_iters=6, value=0.5, decay_iters=2)

    assert factors(5, poly) == pytest.approx([1, math.sqrt(0.5), 0, 0, 0])


def test_max_iters_counts_from_the_start_of_the_training() -> None:
    up = WarmupStage(WarmupPolicy.LINEAR, max_iters=2, value=0.5)
    down = WarmupStage(WarmupPolicy.STEP, max_iters=5, value=0.5, decay_iters=2)

    assert factors(6, up, down) == [0.5, 0.75, 1.0, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("final", "expected"), [(None, [0.25, 0.25, 0.25]), (1.0, [0.25, 1.0, 1.0])]
)
def test_the_last_or_the_final_factor_holds_after_all_stages(
    final: float | None, expected: list[float]
) -> None:
    down = WarmupStage(WarmupPolicy.STEP, max_iters=2, value=0.5)
    stage, after_all_stages = complete_stages([down], final)

    assert [
        stage_factor(stage, 2),
        stage_factor(after_all_stages, 3),
        stage_factor(after_all_stages, 1000),
    ] == expected


def test_the_factor_without_stages_is_one() -> None:
    assert factors(3) == [1.0, 1.0, 1.0]


def test_the_users_stages_are_not_changed() -> None:
    stage = WarmupStage(WarmupPolicy.POLY, max_iters=4)
    (checked, _) = complete_stages([stage], None)

    assert stage.decay_iters == -1
    assert checked.decay_iters == 4


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (
            [WarmupStage(max_iters=3), WarmupStage(max_iters=3)],
            f"Max iter of the stage {WarmupStage(max_iters=3)} must be greater than the previous "
            "max iter 3",
        ),
        (
            [WarmupStage(WarmupPolicy.INTERPOLATE, max_iters=3, end_value=1.0)],
            "start_interpolating_iters must be set for INTERPOLATE policy",
        ),
        (
            [WarmupStage(WarmupPolicy.INTERPOLATE, max_iters=3, start_interpolating_iters=1)],
            "end_value must be set for INTERPOLATE policy",
        ),
        (
            [
                WarmupStage(
                    WarmupPolicy.INTERPOLATE,
                    max_iters=3,
                    start_interpolating_iters=3,
                    end_value=1.0,
                )
            ],
            "max_iters (3) must be greater than start_interpolating_iters (3) for INTERPOLATE "
            "policy to avoid division by zero",
        ),
    ],
)
def test_wrong_stages_are_refused(stages: list[WarmupStage], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        complete_stages(stages, None)

    assert str(caught.value) == message
    assert isinstance(caught.value, AssertionError)  # as in torchrec


def test_a_policy_may_be_given_by_its_value() -> None:
    stage: Any = WarmupStage("linear", max_iters=2, value=0.0)  # type: ignore[arg-type]
    assert factors(3, stage) == [0.0, 0.5, 1.0]
    stage.policy = "line"
    with pytest.raises(ValueError, match="'line' is not a valid WarmupPolicy"):
        complete_stages([stage], None)


def test_a_period_of_zero_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="sgdr_period must be at least 1, but is 0"):
        complete_stages([WarmupStage(COSINE, max_iters=3, sgdr_period=0)], None)
