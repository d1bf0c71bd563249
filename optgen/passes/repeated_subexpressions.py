"""Find the subexpressions of a value that occur more than once."""

from __future__ import annotations

from collections.abc import Callable

from optgen.ir.nodes import Const, Expr, Ref, children


def repeated_subexpressions(value: Expr, is_candidate: Callable[[Expr], bool]) -> set[Expr]:
    """Return the repeated subexpressions of a value for which `is_candidate` is true.

    Names and constants are no candidates, nor is anything inside an expression that is none.
    """
    seen: set[Expr] = set()
    repeated: set[Expr] = set()

    def visit(expr: Expr) -> None:
        if isinstance(expr, Ref | Const) or not is_candidate(expr):
            return
        if expr in seen:
            repeated.add(expr)
            return
        seen.add(expr)
        for child in children(expr):
            visit(child)

    visit(value)
    return repeated
