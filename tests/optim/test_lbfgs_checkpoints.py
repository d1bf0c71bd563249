"""Test LBFGS's state: torch's format, checkpoints, and copies in the middle of training."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from optim.lbfgs_problems import Run, distance, logistic, new_run, rosenbrock, start_point
from torch import Tensor
from torch_versions import HAS_2_14

from optgen.optim import LBFGS, swap_in_optimizer_params_and_state

SEARCH = {"line_search_fn": "strong_wolfe"}
SAVING_AND_LOADING_CLASS = [(torch.optim.LBFGS, LBFGS), (LBFGS, torch.optim.LBFGS), (LBFGS, LBFGS)]


def save_and_load(checkpoint: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


def type_and_layout(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.device
    if isinstance(value, list):
        return list(map(type_and_layout, value))
    return type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, SEARCH, {"history_size": 3}, {"max_iter": 1}], ids=str)
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_the_state_has_torchs_keys_types_and_shapes(
    options: dict[str, Any], steps: int, dtype: torch.dtype
) -> None:
    """The one difference is `t`, which is a number here, and may be a tensor in torch."""
    state_dicts = []
    for cls in (LBFGS, torch.optim.LBFGS):
        run = new_run(cls, logistic(6), start_point(6, dtype), **{"max_iter": 4, **options})
        run.take_steps(steps)
        state_dicts.append(run.optimizer.state_dict())
    ours, theirs = state_dicts

    assert list(ours) == list(theirs)
    assert list(ours["state"]) == list(theirs["state"])
    for index, expected in theirs["state"].items():
        found = ours["state"][index]
        assert list(found) == list(expected)
        for key in expected:
            if key == "t":
                assert float(found[key]) == pytest.approx(float(expected[key]), rel=1e-4)
            else:
                assert type_and_layout(found[key]) == type_and_layout(expected[key]), key


def test_the_values_of_the_state_are_torchs() -> None:
    states = []
    for cls in (LBFGS, torch.optim.LBFGS):
        run = new_run(cls, rosenbrock(6), start_point(6), history_size=4, max_iter=9, **SEARCH)
        run.take_steps(1)
        states.append(run.optimizer.state[run.param])
    ours, theirs = states

    for key, expected in theirs.items():
        for found, value in zip(flat_numbers(ours[key]), flat_numbers(expected), strict=True):
            assert found is value or found == pytest.approx(value, rel=1e-9), key


def flat_numbers(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [number for entry in value for number in flat_numbers(entry)]
    if isinstance(value, Tensor):
        return value.flatten().tolist()  # type: ignore[no-any-return]
    return [value]


@pytest.mark.parametrize("options", [{"lr": 0.3}, {"history_size": 3}, SEARCH], ids=str)
@pytest.mark.parametrize(("first", "second"), SAVING_AND_LOADING_CLASS)
def test_either_class_continues_from_a_checkpoint_of_the_other(
    first: Any, second: Any, options: dict[str, Any]
) -> None:
    """The first class saves after two steps. The second loads, and steps as torch's LBFGS."""
    uninterrupted = new_run(torch.optim.LBFGS, rosenbrock(4), start_point(4), max_iter=4, **options)
    expected = uninterrupted.take_steps(5)
    before = new_run(first, rosenbrock(4), start_point(4), max_iter=4, **options)
    before.take_steps(2)
    after = new_run(second, rosenbrock(4), before.param, max_iter=4, **options)
    after.optimizer.load_state_dict(save_and_load(before.optimizer.state_dict()))
    found = after.take_steps(3)

    assert before.calls + found[-1].calls == expected[-1].calls
    assert distance(found[-1].param, expected[-1].param) < 1e-11


def deep_copy(run: Run) -> Run:
    return copy.deepcopy(run)


def pickle_copy(run: Run) -> Run:
    function, run.function = run.function, abs  # pickle refuses nested functions
    copied: Run = pickle.loads(pickle.dumps(run))
    copied.function = run.function = function
    return copied


def copy_by_checkpoint(run: Run) -> Run:
    param = torch.nn.Parameter(run.param.detach().clone())
    loaded = new_run(LBFGS, run.function, param, **SEARCH)
    loaded.optimizer.load_state_dict(save_and_load(run.optimizer.state_dict()))
    return loaded


@pytest.mark.parametrize("make_copy", [deep_copy, pickle_copy, copy_by_checkpoint])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [5, 300])
def test_a_copy_steps_with_the_originals_bits(
    make_copy: Any, size: int, dtype: torch.dtype
) -> None:
    original = new_run(LBFGS, rosenbrock(size), start_point(size, dtype), **SEARCH)
    original.take_steps(2)
    other = make_copy(original)

    for mine, theirs in zip(original.take_steps(3), other.take_steps(3), strict=True):
        assert mine.loss == theirs.loss
        assert torch.equal(mine.param, theirs.param)


def test_a_copy_of_torchs_lbfgs_cannot_step() -> None:
    """If this test fails, torch has fixed the fault."""
    with pytest.raises(AttributeError, match="_params"):
        copy.deepcopy(new_run(torch.optim.LBFGS, rosenbrock(3), start_point(3))).take_steps(1)


def test_a_checkpoint_holds_the_history_once() -> None:
    """The saved vectors are not views of the history's matrix: each would save the whole matrix."""
    size = 1000
    run = new_run(LBFGS, rosenbrock(size), start_point(size), max_iter=4)
    run.take_steps(2)
    vectors = 2 * len(run.optimizer.state[run.param]["old_dirs"]) + 3

    assert len(pickle.dumps(run.optimizer)) < 8 * size * (vectors + 2)


def test_loading_and_stepping_do_not_change_the_checkpoint() -> None:
    run = new_run(LBFGS, rosenbrock(5), start_point(5))
    run.take_steps(1)
    checkpoint = copy.deepcopy(run.optimizer.state_dict())
    before = copy.deepcopy(checkpoint)
    other = new_run(LBFGS, rosenbrock(5), run.param)
    other.optimizer.load_state_dict(checkpoint)
    other.take_steps(2)

    for key, value in before["state"][0].items():
        assert flat_numbers(value) == flat_numbers(checkpoint["state"][0][key]), key


def test_groups_of_torchs_checkpoint_get_our_keys() -> None:
    """Since torch 2.14 the checkpoint has `maximize`, too, and replaces ours."""
    theirs = new_run(torch.optim.LBFGS, rosenbrock(3), start_point(3), lr=0.25)
    ours = new_run(LBFGS, rosenbrock(3), start_point(3), maximize=True)
    ours.optimizer.load_state_dict(theirs.optimizer.state_dict())

    assert ours.optimizer.param_groups[0]["lr"] == 0.25
    assert ours.optimizer.param_groups[0]["maximize"] is (not HAS_2_14)


def test_a_state_of_other_parameters_is_refused() -> None:
    theirs = new_run(LBFGS, rosenbrock(3), start_point(3))
    theirs.take_steps(1)
    ours = new_run(LBFGS, rosenbrock(4), start_point(4))
    ours.optimizer.load_state_dict(theirs.optimizer.state_dict())

    with pytest.raises(RuntimeError, match="has 3 numbers, but the parameters have 4"):
        ours.take_steps(1)


@pytest.mark.parametrize("change", ["in place", "another list", "shorter"])
def test_a_step_uses_a_state_changed_by_hand(change: str) -> None:
    """The history's matrices are built again from the changed lists."""
    ends = []
    for cls in (LBFGS, torch.optim.LBFGS):
        run = new_run(cls, rosenbrock(5), start_point(5), max_iter=6)
        run.take_steps(1)
        state = run.optimizer.state[run.param]
        if change == "in place":
            state["old_stps"][1].mul_(1.5)
            state["old_dirs"][1].div_(1.5)
        elif change == "another list":
            state["old_stps"] = [step.clone() for step in state["old_stps"]]
        else:
            for key in ("old_dirs", "old_stps", "ro"):
                del state[key][0]
        ends.append(run.take_steps(1)[0].param)

    assert distance(*ends) < 1e-12


def test_steps_with_a_swapped_in_state_do_not_change_the_own_state() -> None:
    other = new_run(LBFGS, rosenbrock(5), start_point(5), max_iter=6)
    other.take_steps(2)
    state = copy.deepcopy(other.optimizer.state_dict())
    run = new_run(LBFGS, rosenbrock(5), start_point(5), max_iter=6, history_size=100)
    run.take_steps(1)
    expected, own = copy.deepcopy(run), run.param
    swapped = torch.nn.Parameter(other.param.detach().clone())
    with swap_in_optimizer_params_and_state(run.optimizer, {"x": swapped}, state):
        run.param = swapped
        inside = run.take_steps(1)[0].param
    run.param = own

    assert torch.equal(inside, other.take_steps(1)[0].param)
    assert torch.equal(run.take_steps(2)[-1].param, expected.take_steps(2)[-1].param)


def test_a_smaller_history_size_keeps_the_newest_pairs() -> None:
    run = new_run(LBFGS, rosenbrock(8), start_point(8), max_iter=10)
    run.take_steps(1)
    run.optimizer.param_groups[0]["history_size"] = 3
    run.take_steps(1)

    assert len(run.optimizer.state[run.param]["old_dirs"]) == 3
