"""Check the hyperparameter `rank`, a size of thin matrices, and read it in calls."""

from __future__ import annotations

import ast

from optgen.contract.states import RANK
from optgen.ir.algorithm import Algorithm, Hyper
from optgen.ir.nodes import Expr, Ref
from optgen.ir.rank import effective_rank
from optgen.spec.source import Source

_HINT = "declare rank=hyper(128, ge=1)"


def check_rank(source: Source, algorithm: Algorithm) -> None:
    """Check that a rule with matrices of the rank declares `rank`, a whole number of at least 1.

    Raises:
        SpecError: the rule has no such hyperparameter, or it is no such number.
    """
    for state in algorithm.matrix_states():
        if RANK in state.shape and algorithm.hyper(RANK) is None:
            message = f"`{state.symbol}` has an axis of the rank, but the rule has no `{RANK}`"
            source.error_at(state.place, message, f"{_HINT} after the `*`")
    hyper = algorithm.hyper(RANK)
    if hyper is not None and algorithm.has_rank:
        _check_number(source, hyper)


def read_rank(source: Source, algorithm: Algorithm, value: Expr, node: ast.expr) -> Expr:
    """Check that an argument is `rank`; return it, limited by the parameter's rows and columns.

    Raises:
        SpecError: the argument is something else, or the hyperparameter is no whole number.
    """
    hyper = algorithm.hyper(RANK)
    if not isinstance(value, Ref) or value.name != RANK or hyper is None:
        message = f"the number of vectors is the hyperparameter `{RANK}`"
        source.error(node, message, f"write singular_vectors(x, {RANK}), and {_HINT}")
    _check_number(source, hyper)
    return effective_rank(algorithm.param)


def _check_number(source: Source, hyper: Hyper) -> None:
    problem = ""
    lower_bound = hyper.bounds.ge if hyper.bounds.gt is None else hyper.bounds.gt
    if hyper.type != "number":
        problem = f"this is a {hyper.type}"
    elif hyper.optional:
        problem = "it may not be None"
    elif hyper.tensor != "never":
        problem = "it may not be a tensor"
    elif lower_bound is None or lower_bound < 1:
        problem = "ge= must be 1 or more"
    elif not isinstance(hyper.default, int | float) or hyper.default % 1:
        problem = f"{hyper.default} is not whole"
    if problem:
        message = f"`{RANK}` is a size of matrices, a whole number: {problem}"
        source.error_at(hyper.place, message, _HINT)
