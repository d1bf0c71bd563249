"""Test LBFGS's arguments, groups, errors and hooks against torch's, and its additional errors."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from optim.lbfgs_problems import new_run, quadratic, start_point
from torch.nn import Parameter
from torch_inputs import optim_db
from torch_versions import HAS_2_14

from optgen.optim import LBFGS

ADDED_ARGUMENTS = ["maximize", "foreach", "fused", "capturable", "differentiable"]
[INFO] = [info for info in optim_db if info.optim_cls is torch.optim.LBFGS]


def parameters() -> list[Parameter]:
    return [Parameter(torch.ones(2))]


def test_the_signature_begins_with_torchs() -> None:
    """Torch's arguments come first. Ours follow, and are keyword-only."""
    ours = list(inspect.signature(LBFGS).parameters.values())
    theirs = list(inspect.signature(torch.optim.LBFGS).parameters.values())

    assert ours[: len(theirs)] == theirs
    assert [argument.name for argument in ours[len(theirs) :]] == ADDED_ARGUMENTS[HAS_2_14:]
    assert {argument.kind for argument in ours[len(theirs) :]} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("options", [{}, {"max_iter": 7}, {"max_eval": 3, "lr": 2}])
def test_defaults_and_groups_are_torchs(options: dict[str, Any]) -> None:
    ours, theirs = LBFGS(parameters(), **options), torch.optim.LBFGS(parameters(), **options)

    assert list(ours.defaults.items()) == list(theirs.defaults.items())
    assert list(ours.param_groups[0]) == list(theirs.param_groups[0])


@pytest.mark.parametrize(
    "options", [{"maximize": True}, {"foreach": False}, {"fused": True}], ids=str
)
def test_a_group_has_those_added_options_that_were_given(options: dict[str, Any]) -> None:
    (added,) = options
    theirs = torch.optim.LBFGS(parameters())
    ours = LBFGS(parameters(), **options)

    keys = [*dict.fromkeys([*theirs.param_groups[0], added])]
    assert list(ours.param_groups[0]) == keys
    assert ours.state_dict()["param_groups"][0][added] == options[added]
    copied = pickle.loads(pickle.dumps(ours))
    assert list(copied.param_groups[0]) == keys
    assert copied.defaults == ours.defaults


def test_a_step_without_parameters_evaluates_the_closure() -> None:
    """Torch's LBFGS evaluates it since version 2.14."""
    optimizer = LBFGS([{"params": []}])

    with torch.no_grad():
        assert optimizer.step(torch.is_grad_enabled) is True
    assert not optimizer.state


def test_checkpoints_add_no_keys_to_torchs_groups() -> None:
    ours, theirs = LBFGS(parameters()), torch.optim.LBFGS(parameters())
    keys = set(theirs.param_groups[0])
    theirs.load_state_dict(ours.state_dict())

    assert set(theirs.param_groups[0]) == keys
    assert set(copy.deepcopy(ours).param_groups[0]) == keys
    ours.load_state_dict(theirs.state_dict())
    assert set(ours.param_groups[0]) == keys


@pytest.mark.parametrize(
    "case", INFO.optim_error_inputs_func("cpu", torch.float32), ids=lambda c: str(c.error_regex)
)
def test_torchs_error_inputs_give_torchs_errors(case: Any) -> None:
    error_input = case.optimizer_error_input
    messages = []
    for cls in (LBFGS, torch.optim.LBFGS):
        with pytest.raises(case.error_type, match=case.error_regex) as error:
            cls(
                parameters() if error_input.params is None else error_input.params,
                **error_input.kwargs,
            )
        messages.append(str(error.value))

    assert messages[0] == messages[1]


@pytest.mark.parametrize("lr", [-0.1, float("nan"), torch.tensor([0.1, 0.2]), torch.tensor(-1.0)])
def test_learning_rates_out_of_range_are_refused(lr: Any) -> None:
    for cls in (LBFGS, torch.optim.LBFGS):
        with pytest.raises(ValueError, match=r"Invalid learning rate|Tensor lr must be 1-element"):
            cls(parameters(), lr=lr)


def test_a_history_of_size_0_is_refused() -> None:
    with pytest.raises(ValueError, match="Invalid history_size value: 0"):
        LBFGS(parameters(), history_size=0)


@pytest.mark.parametrize("flag", ["capturable", "differentiable"])
def test_capturable_and_differentiable_are_refused(flag: str) -> None:
    with pytest.raises(RuntimeError, match=f"LBFGS does not support `{flag}`: it decides on the"):
        LBFGS(parameters(), **{flag: True})
    with pytest.raises(RuntimeError, match=f"LBFGS does not support `{flag}`"):
        LBFGS([{"params": parameters(), flag: True}])


def test_fused_excludes_foreach() -> None:
    with pytest.raises(RuntimeError, match="`fused` and `foreach` cannot be `True` together"):
        LBFGS(parameters(), fused=True, foreach=True)
    LBFGS(parameters(), fused=True)
    LBFGS(parameters(), foreach=True)


def test_a_second_group_is_refused() -> None:
    message = r"^LBFGS doesn't support per-parameter options \(parameter groups\)$"
    for cls in (LBFGS, torch.optim.LBFGS):
        with pytest.raises(ValueError, match=message):
            cls([{"params": parameters()}, {"params": parameters()}])
    optimizer = LBFGS(parameters())
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": parameters()})

    assert len(optimizer.param_groups) == 1
    optimizer.param_groups.append({"params": parameters()})
    with pytest.raises(AssertionError, match="Expected exactly one param_group, but got 2"):
        optimizer.step(lambda: 1.0)


def test_a_step_needs_a_closure_that_returns_the_loss() -> None:
    message = r"LBFGS.step\(\) missing 1 required positional argument: 'closure'"
    for cls in (LBFGS, torch.optim.LBFGS):
        optimizer: Any = cls(parameters())
        with pytest.raises(TypeError, match=message):
            optimizer.step()
    with pytest.raises(TypeError, match="the closure must return the loss, not None"):
        LBFGS(parameters()).step(lambda: None)


def test_an_unknown_line_search_is_refused() -> None:
    for cls in (LBFGS, torch.optim.LBFGS):
        run = new_run(cls, quadratic(3), start_point(3), line_search_fn="armijo")
        with pytest.raises(RuntimeError, match=r"^only 'strong_wolfe' is supported$"):
            run.take_steps(1)


def test_a_step_runs_hooks_and_returns_the_first_loss() -> None:
    param = start_point(3)
    optimizer = LBFGS([("weight", param)])
    hook_calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: hook_calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: hook_calls.append("after"))
    losses: list[torch.Tensor] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        losses.append(param.square().sum())
        losses[-1].backward()
        return losses[-1]

    with torch.no_grad():  # the step enables gradients for the closure
        returned = optimizer.step(closure)

    assert optimizer.param_groups[0]["param_names"] == ["weight"]
    assert hook_calls == ["before", "after"]
    assert returned is losses[0]
    assert "history_size: 100" in repr(optimizer)


def test_the_profiler_sees_a_step() -> None:
    run = new_run(LBFGS, quadratic(3), start_point(3))
    with torch.profiler.profile() as profile:
        run.take_steps(1)

    assert "Optimizer.step#LBFGS.step" in {event.key for event in profile.key_averages()}


def test_a_scheduler_changes_the_learning_rate() -> None:
    run = new_run(LBFGS, quadratic(3), start_point(3), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(run.optimizer, 0.5)
    run.take_steps(1)
    scheduler.step()
    run.take_steps(1)

    assert run.optimizer.param_groups[0]["lr"] == 0.25


def test_a_compiled_step_equals_an_eager_step() -> None:
    run = new_run(LBFGS, quadratic(3), start_point(3))
    expected = new_run(LBFGS, quadratic(3), start_point(3)).take_steps(1)[0]
    compiled = torch.compile(run.optimizer.step, backend="eager")
    compiled(run.closure)

    assert torch.equal(run.param, expected.param)
