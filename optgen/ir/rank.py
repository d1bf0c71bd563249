"""Define the rank of thin matrices: for each parameter, at most its numbers of rows and columns."""

from __future__ import annotations

from optgen.ir.nodes import Call, Expr, Ref

RANK = "rank"
"""The hyperparameter that is the rank: a size in the shapes of states."""


def effective_rank(param: str) -> Expr:
    """Return the rank of a parameter's thin matrices, given the parameter's name."""
    rows, cols = (Call(size, (Ref(param),)) for size in ("rows", "cols"))
    return Call("minimum", (Ref(RANK), Call("minimum", (rows, cols))))
