"""Test `Rule` and `State`: the conditions and shapes of states, numbers, contradictions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from optgen.runtime.rule import Rule, State, number, truth


@pytest.mark.parametrize(
    ("when", "group", "present"),
    [
        (None, {}, True),
        ("amsgrad", {"amsgrad": True}, True),
        ("amsgrad", {"amsgrad": False}, False),
        ("momentum", {"momentum": 0.9}, True),
        ("momentum", {"momentum": 0}, False),
        ("momentum", {"momentum": None}, False),
        ("not centered", {"centered": False}, True),
        ("not centered", {"centered": True}, False),
    ],
)
def test_a_state_is_present_when_its_condition_is_true(
    when: str | None, group: dict[str, Any], present: bool
) -> None:
    assert State("s", when=when).is_present(group) is present


def test_a_tensor_hyperparameter_counts_as_true_and_is_not_read() -> None:
    assert truth(torch.zeros((), device="meta"))


def test_numpy_numbers_count_as_python_numbers() -> None:
    assert [truth(each) for each in (np.bool_(False), np.float32(0), np.int64(2))] == [0, 0, 1]
    assert type(number(np.float32(0.5))) is float
    assert number((np.float32(0.5), None, "name")) == (0.5, None, "name")


@pytest.mark.parametrize(
    ("new_rule_or_state", "message"),
    [
        (lambda: State("step"), "may not be called 'step'"),
        (lambda: State("s", shape="cube"), "unknown shape 'cube'"),
        (lambda: Rule("r", (State("s"), State("s")), ()), "two states have one key"),
        (lambda: Rule("r", (State("s"),), (), fresh=("b",)), "no state 'b'"),
        (lambda: Rule("r", (), (), facts=("square",)), "no fact 'square'"),
        (lambda: Rule("r", (), (), gradient="odd"), "unknown gradient kind 'odd'"),
        (lambda: Rule("r", (), (), step="float"), "unknown kind of step 'float'"),
    ],
)
def test_a_rule_that_contradicts_itself_cannot_be_made(
    new_rule_or_state: Callable[[], Rule | State], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        new_rule_or_state()


@pytest.mark.parametrize(
    ("when", "shapes"),
    [
        (None, [(), (2,), (2, 3)]),
        ("amsgrad", [(), (2,), (2, 3)]),
        ("factored", [(2, 3)]),
        ("not factored", [(), (2,)]),
    ],
)
def test_a_state_suits_a_parameter_by_its_shape(
    when: str | None, shapes: list[tuple[int, ...]]
) -> None:
    params = [torch.ones(shape) for shape in ((), (2,), (2, 3))]
    assert [tuple(p.shape) for p in params if State("s", when=when).suits(p, {})] == shapes


def test_row_and_column_states_have_one_axis_of_size_one() -> None:
    param = torch.ones(2, 3, 4)
    shapes = {shape: State("s", shape=shape).shape_for(param) for shape in ("like", "row", "col")}
    assert shapes == {"like": [2, 3, 4], "row": [2, 3, 1], "col": [2, 1, 4]}
