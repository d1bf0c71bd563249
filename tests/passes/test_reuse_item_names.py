"""Test that a tuple item is replaced by its name only if the name is assigned once."""

from optgen.ir.nodes import Assign, Call, Const, If, Program, Ref
from optgen.passes.name_values import reuse_item_names

FIRST_ITEM = Call("item", (Ref("eps"), Const(0)))
UNPACKING = Assign(Ref("eps1"), FIRST_ITEM)


def branch_on(value: object) -> Program:
    """Return a branch on the condition that a value is None."""
    condition = Call("is_none", (value,))  # type: ignore[arg-type]
    return (If(condition, (Assign(Ref("floor"), Const(1)),), ()),)


def test_only_reads_below_the_unpacking_are_replaced() -> None:
    above, below = branch_on(FIRST_ITEM), branch_on(Ref("eps1"))

    assert reuse_item_names((*above, UNPACKING, *above)) == (*above, UNPACKING, *below)


def test_a_name_that_is_assigned_again_does_not_replace_the_item() -> None:
    program = (UNPACKING, Assign(Ref("eps1", 1), Const(2)), *branch_on(FIRST_ITEM))

    assert reuse_item_names(program) == program
