"""Define the rank of thin matrices: the hyperparameter, but at most the rows and the columns."""

from __future__ import annotations

from optgen.contract.states import RANK
from optgen.ir.nodes import Call, Expr, Ref


def effective_rank(param: str) -> Expr:
    """Return the expression of the rank of a parameter's matrices, given the parameter's name."""
    rows, cols = (Call(size, (Ref(param),)) for size in ("rows", "cols"))
    return Call("minimum", (Ref(RANK), Call("minimum", (rows, cols))))
