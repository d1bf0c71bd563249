"""Test None and NaN as hyperparameters of fused C++ steps, and the limit on a rule's states."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import optgen
from optgen.optim import SGD, Adam
from optgen.runtime.fused_cpu import kernel_loader
from optgen.runtime.fused_cpu.kernel_loader import why_too_many_states
from optgen.runtime.rule import Rule, State


def parameter() -> Tensor:
    """Return a parameter of ones whose gradient is ones."""
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    return param


@pytest.mark.usefixtures("with_and_without_reader")
@pytest.mark.parametrize("betas", [(0.9,), (0.9, 0.99, 0.5), 0.9])
def test_a_tuple_of_the_wrong_length_raises_and_changes_nothing(betas: Any) -> None:
    params = [parameter(), parameter()]
    optimizer = Adam([{"params": params[:1], "lr": 0.5}, {"params": params[1:], "lr": 0.0}])
    for _ in range(3):
        optimizer.step()
    before = [param.detach().clone() for param in params]
    valid_betas = optimizer.param_groups[1]["betas"]
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.param_groups[1]["betas"] = betas
    for _ in range(2):
        with pytest.raises(ValueError, match=r"betas must be 2 numbers, not [13]"):
            optimizer.step()
    assert all(map(torch.equal, params, before))

    optimizer.param_groups[1]["betas"] = valid_betas
    optimizer.step()
    moved = (before[0] - params[0]).detach()
    assert moved.tolist() == pytest.approx([0.25] * 3)  # the new lr, not the cached one
    assert torch.equal(params[1], before[1])


@pytest.mark.usefixtures("with_and_without_reader")
@pytest.mark.parametrize("key", ["weight_decay", "lr"])
def test_none_raises_where_a_number_is_needed(key: str) -> None:
    optimizer = Adam([parameter()])
    optimizer.step()
    optimizer.param_groups[0][key] = None
    with pytest.raises(TypeError, match=f"{key} must be a number, not None"):
        optimizer.step()


@pytest.mark.usefixtures("with_and_without_reader")
def test_a_flag_that_is_none_counts_as_false() -> None:
    param = parameter()
    optimizer = SGD([param], lr=0.5)
    optimizer.step()
    optimizer.param_groups[0]["maximize"] = None
    optimizer.step()
    assert param.tolist() == [0.0] * 3


@pytest.mark.usefixtures("with_and_without_reader")
@pytest.mark.parametrize("cls", [SGD, Adam])
def test_a_weight_decay_of_nan_counts_as_true_as_in_python(cls: Any) -> None:
    param = parameter()
    optimizer = cls([param])
    optimizer.step()
    optimizer.param_groups[0]["weight_decay"] = math.nan
    optimizer.step()
    assert param.isnan().all()


OPTIONAL_HYPER_SPEC = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def Limited(p, g, t, /, *, lr=hyper(1.0), limit=hyper(None, optional=True)):
    """A step no longer than a limit."""
    if limit is not None:
        g = minimum(g, limit)
    p = p - lr * g
'''


@pytest.mark.usefixtures("with_and_without_reader")
def test_an_optional_value_is_none_or_a_number_or_nan(tmp_path: Path) -> None:
    path = tmp_path / "limited.py"
    path.write_text(OPTIONAL_HYPER_SPEC)
    param = parameter()
    optimizer = optgen.load(path)([param])
    results = []
    for limit in (None, 0.5, None, math.nan):
        optimizer.param_groups[0]["limit"] = limit
        optimizer.step()
        results.append(param[0].item())
    assert results[:3] == [0.0, -0.5, -1.5]
    assert math.isnan(results[3])


def rule(state_count: int, fresh_count: int = 0, step: str | None = "tensor") -> Rule:
    """Return a rule with `state_count` states; it calls `fresh` on the first of them."""
    keys = [f"state{index}" for index in range(state_count)]
    return Rule("big", tuple(map(State, keys)), ("lr",), step, tuple(keys[:fresh_count]))


def test_the_reason_says_whether_states_or_matrices_are_too_many() -> None:
    assert (
        why_too_many_states(rule(13))
        == why_too_many_states(rule(14, step=None))
        == why_too_many_states(rule(8, fresh_count=8))
        == ""
    )
    assert (
        why_too_many_states(rule(14))
        == why_too_many_states(rule(15, step=None))
        == "more than 14 states"
    )
    assert (
        why_too_many_states(rule(9, fresh_count=9))
        == "the rule calls `fresh` on more than 8 states"
    )
    matrices = ("a", "b", "c")
    assert why_too_many_states(replace(rule(10), matrices=matrices)) == ""
    assert (
        why_too_many_states(replace(rule(11), matrices=matrices))
        == "more than 14 states and matrices"
    )


MANY_STATES_SPEC = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def Many(p, g, t, /, {states}, *, lr=hyper(0.5)):
    """Many states."""
{body}
    p = p - lr * s0
'''
ADD = "s{0} = s{0} + g"
ADD_UNLESS_FRESH = "if fresh(s{0}):\n        s{0} = g\n    else:\n        s{0} = s{0} + g"


@pytest.mark.parametrize(("count", "update"), [(15, ADD), (9, ADD_UNLESS_FRESH)])
def test_a_rule_with_too_many_states_steps_unfused(count: int, update: str, tmp_path: Path) -> None:
    states = ", ".join(f's{index}=state("state{index}")' for index in range(count))
    body = "\n".join("    " + update.format(index) for index in range(count))
    path = tmp_path / "many.py"
    path.write_text(MANY_STATES_SPEC.format(states=states, body=body))
    param = parameter()
    optimizer = optgen.load(path)([param])

    assert "more than " in optgen.explain(optimizer)
    for _ in range(2):
        optimizer.step()
    assert param.tolist() == [-0.5] * 3
    with pytest.raises(RuntimeError, match="more than"), optgen.use_lowering("fused_cpu"):
        optimizer.step()
    assert "more than" in str(kernel_loader.kernel_or_reason(type(optimizer)))


@pytest.mark.usefixtures("with_and_without_reader")
@pytest.mark.parametrize("lr", [[0.1], (0.1,), []])
def test_a_list_is_no_number(lr: Any) -> None:
    param = parameter()
    optimizer = Adam([param])
    for _ in range(3):
        optimizer.step()
    before = param.detach().clone()
    optimizer.param_groups[0]["lr"] = lr

    with pytest.raises(TypeError, match=r"lr must be a number, not [\[(]"):
        optimizer.step()
    assert torch.equal(param, before)


def test_a_list_of_as_many_numbers_counts_as_a_tuple() -> None:
    params = [parameter(), parameter()]
    for param, betas in zip(params, ((0.5, 0.9), [0.5, 0.9]), strict=True):
        optimizer = Adam([param])
        optimizer.param_groups[0]["betas"] = betas
        optimizer.step()

    assert torch.equal(*params)
