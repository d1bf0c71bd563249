"""Test ExtendedState, which joins the parameters' state and extra entries."""

from collections import defaultdict
from typing import Any

import pytest
import torch
from keyed.models import keyed_adamw, parameters, train

from optgen.keyed import OptimizerWrapper, WarmupOptimizer, WarmupStage
from optgen.keyed.checkpoint import ExtendedState

FIRST, SECOND, EXTRA, MISSING = (torch.nn.Parameter(torch.ones(1)) for _ in range(4))


def states_and_joined(state: Any = None) -> tuple[Any, Any, ExtendedState]:
    """Return the parameters' state, the extra state, and both joined."""
    state = {FIRST: {"a": 1}, SECOND: {"b": 2}} if state is None else state
    extra: Any = {EXTRA: {"c": 3}}
    return state, extra, ExtendedState(state, extra)


def test_both_states_read_as_one_dict() -> None:
    state, extra, joined = states_and_joined()

    assert list(joined) == [FIRST, SECOND, EXTRA]
    assert len(joined) == 3
    assert joined == {**state, **extra}
    assert joined[EXTRA] is extra[EXTRA]
    assert joined.get(FIRST) is state[FIRST]
    assert repr(joined) == repr({**state, **extra})
    assert MISSING not in joined
    with pytest.raises(KeyError):
        joined[MISSING]


def test_writes_go_to_the_dict_that_has_the_entry() -> None:
    state, extra, joined = states_and_joined()
    joined[EXTRA] = {"c": 4}
    joined[MISSING] = {"d": 5}
    del joined[FIRST]
    assert joined.pop(SECOND) == {"b": 2}

    assert state == {MISSING: {"d": 5}}
    assert extra == {EXTRA: {"c": 4}}
    joined.clear()
    assert not state
    assert not extra


def test_get_and_pop_create_no_entry() -> None:
    state, _, joined = states_and_joined(defaultdict(dict))
    assert MISSING not in joined
    assert joined.get(MISSING) is None
    assert joined.pop(MISSING, None) is None
    assert not state
    assert joined.setdefault(FIRST, {"a": 1}) == {"a": 1}
    joined[MISSING]["d"] = 5
    assert state == {FIRST: {"a": 1}, MISSING: {"d": 5}}


def test_writes_through_wrappers_reach_the_state() -> None:
    optimizer = OptimizerWrapper(
        WarmupOptimizer(keyed_adamw(parameters()), [WarmupStage(max_iters=2)])
    )
    train(optimizer, 1)
    weight, bias = optimizer.params["weight"], optimizer.params["bias"]
    del optimizer.state[weight]
    optimizer.state[bias] = {**optimizer.state[bias], "mine": 1}

    assert list(optimizer.state_dict()["state"]) == ["bias", "__warmup"]
    assert optimizer.state_dict()["state"]["bias"]["mine"] == 1
    train(optimizer, 1)
    assert optimizer.state[weight]["step"] == 1
