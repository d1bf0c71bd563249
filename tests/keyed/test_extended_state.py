"""Test state with extra entries beside the parameters' state."""

from collections import defaultdict
from typing import Any

import pytest
import torch
from keyed.models import adam, parameters, train

from optgen.keyed import OptimizerWrapper, WarmupOptimizer, WarmupStage
from optgen.keyed.extended_state import ExtendedState

FIRST, SECOND, EXTRA, MISSING = (torch.nn.Parameter(torch.ones(1)) for _ in range(4))


def states(state: Any = None) -> tuple[Any, Any, ExtendedState]:
    state = {FIRST: {"a": 1}, SECOND: {"b": 2}} if state is None else state
    extra: Any = {EXTRA: {"c": 3}}
    return state, extra, ExtendedState(state, extra)


def test_both_states_read_as_one_dict() -> None:
    state, extra, both = states()

    assert list(both) == [FIRST, SECOND, EXTRA]
    assert len(both) == 3
    assert both == {**state, **extra}
    assert both[EXTRA] is extra[EXTRA]
    assert both.get(FIRST) is state[FIRST]
    assert repr(both) == repr({**state, **extra})
    assert MISSING not in both
    with pytest.raises(KeyError):
        both[MISSING]


def test_writes_go_to_the_dict_that_has_the_entry() -> None:
    state, extra, both = states()
    both[EXTRA] = {"c": 4}
    both[MISSING] = {"d": 5}
    del both[FIRST]
    assert both.pop(SECOND) == {"b": 2}

    assert state == {MISSING: {"d": 5}}
    assert extra == {EXTRA: {"c": 4}}
    both.clear()
    assert not state
    assert not extra


def test_lookups_create_no_entry() -> None:
    state, _, both = states(defaultdict(dict))
    assert MISSING not in both
    assert both.get(MISSING) is None
    assert both.pop(MISSING, None) is None
    assert not state
    assert both.setdefault(FIRST, {"a": 1}) == {"a": 1}
    both[MISSING]["d"] = 5
    assert state == {FIRST: {"a": 1}, MISSING: {"d": 5}}


def test_writes_through_wrappers_reach_the_state() -> None:
    optimizer = OptimizerWrapper(WarmupOptimizer(adam(parameters()), [WarmupStage(max_iters=2)]))
    train(optimizer, 1)
    weight, bias = optimizer.params["weight"], optimizer.params["bias"]
    del optimizer.state[weight]
    optimizer.state[bias] = {**optimizer.state[bias], "mine": 1}

    assert list(optimizer.state_dict()["state"]) == ["bias", "__warmup"]
    assert optimizer.state_dict()["state"]["bias"]["mine"] == 1
    train(optimizer, 1)
    assert optimizer.state[weight]["step"] == 1
