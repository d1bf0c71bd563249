"""Recognize statements that copy a value, also where the copy is a linear form of one term."""

from __future__ import annotations

from optgen.ir.nodes import Assign, Const, Expr, Linear, Ref, Term


def is_self_copy(stmt: Assign) -> bool:
    """Tell whether a statement only copies a name to its next version."""
    source = copy_source(stmt)
    return source is not None and source.name == stmt.target.name


def copy_source(stmt: Assign) -> Ref | None:
    """Return the source of a statement that is a plain copy, else None."""
    source = only_factor(stmt.value)
    return source if isinstance(source, Ref) else None


def only_factor(value: Expr) -> Expr:
    """Return the factor of a linear form `1 * factor`; return any other value as it is."""
    match value:
        case Linear((Term(Const(1), (factor,), ()),)):
            return factor
        case _:
            return value
