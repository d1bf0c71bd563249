"""Test which uniform conditions a kernel may assume to be rarely true."""

from __future__ import annotations

import pytest

from optgen.ir.algorithm import Hyper
from optgen.ir.nodes import Call, Expr, Ref
from optgen.passes.descriptive_names import is_rare

HYPERS = {
    "maximize": Hyper("maximize", "flag", False),
    "decoupled": Hyper("decoupled", "flag", True),
    "weight_decay": Hyper("weight_decay", "number", 0),
}
MAXIMIZE, DECOUPLED = Ref("maximize"), Ref("decoupled")
WEIGHT_DECAY = Call("truth", (Ref("weight_decay"),))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (MAXIMIZE, True),
        (Call("truth", (MAXIMIZE,)), True),
        (DECOUPLED, False),  # it is on by default
        (WEIGHT_DECAY, False),  # a number may have any value
        (Call("not", (MAXIMIZE,)), False),
        (Call("and", (WEIGHT_DECAY, MAXIMIZE)), True),
        (Call("and", (WEIGHT_DECAY, DECOUPLED)), False),
        (Call("fresh", (Ref("b"),)), True),
        (Ref("step"), False),
    ],
)
def test_flags_that_are_off_by_default_and_fresh_states_are_rare(
    condition: Expr, expected: bool
) -> None:
    assert is_rare(condition, HYPERS) is expected
