"""A hyperparameter that only starts a state is the runtime's: no lowering is handed it."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import expressions, refs


def drop_unread(algorithm: Algorithm) -> Algorithm:
    """The same rule, of the hyperparameters that it or the presence of a state asks for."""
    read = {ref.name for expr in expressions(algorithm.rule) for ref in refs(expr)}
    read |= {state.when.removeprefix("not ") for state in algorithm.states if state.when}
    return replace(algorithm, hypers=tuple(h for h in algorithm.hypers if h.name in read))
