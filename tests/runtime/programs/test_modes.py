"""Test the mode, train or eval, of optimizers with programs: steps, checkpoints and groups."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from interpreter import outside_interpreter, run_inside
from runtime.programs.schedule_free import (
    ADAMW,
    LOWERINGS,
    check_close,
    param_values,
    parameters,
    train,
)

import optgen
from optgen.keyed import KeyedOptimizerWrapper, UpdateInBackward


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_call_of_the_current_mode_changes_nothing(lowering: str) -> None:
    optimizer = ADAMW(parameters())
    with optgen.use_lowering(lowering):
        train(optimizer, 3)
        in_train_mode = param_values(optimizer)
        optimizer.train()
        assert all(map(torch.equal, param_values(optimizer), in_train_mode))
        optimizer.eval()
        in_eval_mode = param_values(optimizer)
        assert not any(map(torch.equal, in_eval_mode, in_train_mode))
        optimizer.eval()
        assert all(map(torch.equal, param_values(optimizer), in_eval_mode))


@outside_interpreter
def test_a_step_in_eval_mode_is_an_error_before_anything_changes() -> None:
    optimizer = ADAMW(parameters())
    train(optimizer, 2)
    optimizer.eval()
    before, saved = param_values(optimizer), copy.deepcopy(optimizer.state_dict())
    called = []
    with pytest.raises(RuntimeError, match=r"ScheduleFreeAdamW\.step in eval mode: call"):
        optimizer.step(lambda: called.append(0) or 0.0)

    assert not called
    assert all(map(torch.equal, param_values(optimizer), before))
    assert repr(optimizer.state_dict()) == repr(saved)
    optimizer.train()
    train(optimizer, 1)


@outside_interpreter
@pytest.mark.parametrize("method", ["state dict", "pickle", "copy"])
def test_a_checkpoint_or_copy_keeps_the_mode(method: str) -> None:
    optimizer: Any = ADAMW(parameters())
    train(optimizer, 3)
    optimizer.eval()
    assert [g["train_mode"] for g in optimizer.state_dict()["param_groups"]] == [False]
    if method == "state dict":
        other: Any = ADAMW([p.detach().clone().requires_grad_() for p in param_values(optimizer)])
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    elif method == "pickle":
        other = pickle.loads(pickle.dumps(optimizer))
    else:
        other = copy.deepcopy(optimizer)
    with pytest.raises(RuntimeError, match="eval mode"):
        other.step()
    for each in (optimizer, other):
        each.train()
        train(each, 3, 3)

    assert all(map(torch.equal, param_values(optimizer), param_values(other)))


@outside_interpreter
def test_a_checkpoint_without_a_mode_is_loaded_in_train_mode() -> None:
    optimizer: Any = ADAMW(parameters())
    train(optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["param_groups"][0]["train_mode"]
    optimizer.eval()
    optimizer.load_state_dict(saved)

    assert optimizer.param_groups[0]["train_mode"] is True


@outside_interpreter
def test_a_group_may_join_in_eval_mode() -> None:
    optimizer: Any = ADAMW(parameters())
    train(optimizer, 2)
    before = param_values(optimizer)
    optimizer.eval()
    new = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [new]})
    with pytest.raises(RuntimeError, match="eval mode"):
        optimizer.step()
    optimizer.train()

    check_close(param_values(optimizer), [*before, torch.ones(3, dtype=torch.float64)])
    train(optimizer, 1, 2)


@outside_interpreter
def test_a_class_without_programs_has_no_mode() -> None:
    optimizer = optgen.optim.AdamW([torch.nn.Parameter(torch.ones(2))])

    assert not hasattr(optimizer, "train")
    assert not hasattr(optimizer, "eval")
    assert "train_mode" not in optimizer.state_dict()["param_groups"][0]


@outside_interpreter
def test_wrappers_that_save_no_groups_refuse_programs() -> None:
    params = dict(enumerate(parameters()))
    with pytest.raises(TypeError, match="keeps its mode, train or eval, in its param groups"):
        KeyedOptimizerWrapper({str(k): p for k, p in params.items()}, ADAMW)
    with pytest.raises(TypeError, match="keeps its mode"):
        UpdateInBackward(torch.nn.Linear(2, 2), ADAMW)


@outside_interpreter
def test_torchs_get_optimizer_state_dict_creates_states_in_eval_mode() -> None:
    state_dicts = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model = torch.nn.Linear(3, 2)
    optimizer: Any = ADAMW(model.parameters())
    optimizer.eval()
    checkpoint = state_dicts.get_optimizer_state_dict(model, optimizer)

    assert "z" in checkpoint["state"]["weight"]
    assert optimizer.param_groups[0]["train_mode"] is False
