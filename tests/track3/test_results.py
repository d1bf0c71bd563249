"""Test the results of track 3 against their scripts' steps, written anew in plain torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from track3.follow import MODEL, ResultTraining, largest_differences, steady_decompositions
from track3.scripts import SCRIPTS

from examples.track3.result import Result
from examples.track3.results import RESULTS

AMPLIFY_ROUNDING = (27,)
"""Results whose first step divides the rounding errors of a projection by eps, 1e-8."""
WITHOUT_EIGENBASES = [
    name for name, result in RESULTS.items() if not SCRIPTS[result.number].decomposes
]
IN_EIGENBASES = [name for name in RESULTS if name not in WITHOUT_EIGENBASES]


def lowerings(result: Result) -> tuple[str, ...]:
    """Return the lowerings that a result has on the CPU."""
    return ("forloop", "foreach", "fused_cpu")


def followed_lowerings(result: Result) -> list[str]:
    """Return foreach, the for-loop for every third result, and fused C++ for every second one.

    Compiling the functions of a fused step takes long.
    """
    left_out = {"forloop"} if result.number % 3 else set()
    left_out |= set() if result.number % 2 else {"fused_cpu"}
    return [name for name in lowerings(result) if name not in left_out]


@pytest.mark.one_case_in(4)
@outside_interpreter
@pytest.mark.parametrize("name", WITHOUT_EIGENBASES)
def test_a_result_equals_its_script(name: str) -> None:
    result = RESULTS[name]

    assert max(largest_differences(result, followed_lowerings(result))) <= 1e-10


@pytest.mark.one_case_in(8)
@outside_interpreter
@pytest.mark.parametrize("name", IN_EIGENBASES)
def test_a_result_in_eigenbases_equals_its_script(name: str) -> None:
    result = RESULTS[name]
    if result.number not in AMPLIFY_ROUNDING:
        assert max(largest_differences(result, ["foreach"], only_square=True)) <= 1e-10
    with steady_decompositions():
        assert max(largest_differences(result, followed_lowerings(result))) <= 1e-10


@outside_interpreter
def test_results_and_scripts_have_the_same_numbers() -> None:
    assert sorted(result.number for result in RESULTS.values()) == sorted(SCRIPTS)
    assert all(result.steps == SCRIPTS[result.number].steps for result in RESULTS.values())


@pytest.mark.one_case_in(4)
@outside_interpreter
@pytest.mark.parametrize("name", RESULTS)
def test_the_options_of_every_step_are_those_of_the_log(name: str) -> None:
    """Learning rates, decays and all other options are compared in every step.

    An option that the class lacks is 0 or False in the log: without it the rule does the same.
    """
    result, script = RESULTS[name], SCRIPTS[RESULTS[name].number]
    params = {n: torch.nn.Parameter(torch.empty(shape)) for n, shape in MODEL.items()}
    groups = [g for each in result.optimizers(params.items()) for g in each.param_groups]
    for param in {id(result.group(n, p)): n for n, p in params.items()}.values():
        (group,) = (g for g in groups if any(p is params[param] for p in g["params"]))
        _, options = script.step_and_options(param, MODEL[param])
        for logged_step in range(script.steps):
            expected, found = (
                options(logged_step),
                group | group["as_logged"].options_at(logged_step),
            )
            for key, value in expected.items():
                assert is_near(found.get(key, 0), value), (param, logged_step, key)


def is_near(found: Any, expected: Any) -> bool:
    """Tell whether numbers, or tuples of numbers, are equal but for rounding."""
    if isinstance(expected, tuple):
        return all(map(is_near, found, expected))
    return math.isclose(found, expected, rel_tol=1e-12)


@outside_interpreter
def test_eval_returns_to_the_weights_and_train_looks_ahead() -> None:
    """Result 39 validates at the weights, behind the point where it takes gradients."""
    result = RESULTS["ema_nesterov"]
    start = {"blocks.0.attn.q.weight": torch.ones(3, 3), "proj.bias": torch.ones(3)}
    training = ResultTraining(result, "forloop", start)
    for logged_step in (0, 1000):
        training.step(logged_step, {name: torch.randn_like(p) for name, p in start.items()})
    for name, param in training.params.items():
        ahead = param.detach().clone()
        (optimizer,) = (o for o in training.optimizers if param in o.state)
        state = optimizer.state[param]
        weights = state["last_weights"].clone()
        optimizer.eval()
        assert torch.equal(param, weights), name
        optimizer.train()
        assert torch.equal(param, ahead), name
        torch.testing.assert_close(ahead, weights + 0.6 * state["mean_move"])


@pytest.mark.one_case_in(2)
@outside_interpreter
@pytest.mark.parametrize(("step", "share"), [(2399, 1), (2400, 1 / 150), (2899, 0)])
def test_result_46_is_evaluated_between_the_weights_and_a_mean_of_the_last(
    step: int, share: float
) -> None:
    """The mean begins with the weights after step 2400; new weights have the share 1/150 then."""
    names = ("blocks.0.attn.q.weight", "proj.bias", "embed.weight")
    start = {name: torch.eye(3) for name in names}
    training = ResultTraining(RESULTS["row_floor"], "forloop", start)
    weights = []
    for logged_step in (2399, step):
        training.step(logged_step, {name: torch.ones_like(p) for name, p in start.items()})
        weights.append({name: p.detach().clone() for name, p in training.params.items()})
    first, last = weights
    for optimizer in training.optimizers:
        optimizer.eval()
    for name, param in training.params.items():
        mean = first[name].lerp(last[name], 1.0 if name == "embed.weight" else share)
        torch.testing.assert_close(param.detach(), last[name].lerp(mean, 0.6))
    for optimizer in training.optimizers:
        optimizer.train()
    for name, param in training.params.items():
        assert torch.equal(param, last[name]), name


@inside_interpreter
def test_kernels_equal_the_script() -> None:
    """Result 4 has a rule with reductions. Other tests cover the kernels of other rules."""
    (difference,) = largest_differences(RESULTS["adam_h"], ["fused_triton"])

    assert difference <= 1e-10


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)
