"""Test that a tuple item is replaced by its name only if the name is assigned once."""

from optgen.ir.nodes import Assign, Call, Const, If, Program, Ref
from optgen.passes.reuse_item_names import reuse_item_names

FIRST = Call("item", (Ref("eps"), Const(0)))
UNPACKED = Assign(Ref("eps1"), FIRST)


def asking(value: object) -> Program:
    asked = Call("is_none", (value,))  # type: ignore[arg-type]
    return (If(asked, (Assign(Ref("floor"), Const(1)),), ()),)


def test_below_the_line_that_unpacks() -> None:
    above, below = asking(FIRST), asking(Ref("eps1"))

    assert reuse_item_names((*above, UNPACKED, *above)) == (*above, UNPACKED, *below)


def test_a_name_that_is_assigned_again_is_no_name_of_it() -> None:
    program = (UNPACKED, Assign(Ref("eps1", 1), Const(2)), *asking(FIRST))

    assert reuse_item_names(program) == program
