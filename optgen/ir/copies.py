"""Recognize statements that copy a value."""

from __future__ import annotations

from optgen.ir.nodes import Assign, Const, Linear, Ref, Term


def is_self_copy(stmt: Assign) -> bool:
    """Tell whether a statement only copies a name to its next version."""
    source = copied(stmt)
    return source is not None and source.name == stmt.target.name


def copied(stmt: Assign) -> Ref | None:
    """Return the source of a statement that is a plain copy, else None."""
    match stmt.value:
        case Ref() as source:
            return source
        case Linear((Term(Const(1), (Ref() as source,), ()),)):
            return source
        case _:
            return None
