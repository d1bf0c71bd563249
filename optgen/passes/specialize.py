"""Specialize a rule to one combination of shape predicates ("facts"), or to 1 x 1 matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from optgen.contract.states import FACTS
from optgen.ir.algorithm import Algorithm, State
from optgen.ir.nodes import Call, Const, Expr, expressions, map_expressions, rebuild, walk

Facts = Mapping[str, bool]


def facts_read(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the shape predicates (`factored`) that the rule or its states read."""
    names = {s.condition.name for s in algorithm.states if s.condition}
    nodes = (node for expr in expressions(algorithm.rule) for node in walk(expr))
    names |= {node.op for node in nodes if isinstance(node, Call)}
    return tuple(fact for fact in FACTS if fact in names)


def fact_combinations(algorithm: Algorithm) -> Iterator[Facts]:
    """Yield every possible combination of answers, True first.

    A tall parameter has rows and columns, so it is factored, too. If the rule reads no facts, yield
    one empty mapping.
    """
    facts = facts_read(algorithm)
    for answers in product((True, False), repeat=len(facts)):
        combination = dict(zip(facts, answers, strict=True))
        if combination.get("factored", True) or not combination.get("tall"):
            yield combination


def specialize(algorithm: Algorithm, facts: Facts) -> Algorithm:
    """Return the algorithm for parameters with these facts, without states that do not exist."""
    if not facts:
        return algorithm
    states: list[State] = []
    for state in algorithm.states:
        condition = state.condition
        if condition is None or condition.name not in facts:
            states.append(state)
        elif facts[condition.name] is condition.holds:
            states.append(replace(state, when=None))
    return replace(
        algorithm,
        states=tuple(states),
        rule=map_expressions(algorithm.rule, lambda expr: _with_answers(expr, facts)),
    )


def _with_answers(expr: Expr, facts: Facts) -> Expr:
    """Return an expression with every fact replaced by True or False."""
    match expr:
        case Call(word, _) if word in facts:
            return Const(facts[word], expr.place)
    return rebuild(expr, lambda child: _with_answers(child, facts))


def specialize_unit_matrices(algorithm: Algorithm) -> Algorithm:
    """Return the rule for parameters whose matrices have one element each.

    The row and column sums of such a matrix are its element. The weight of a 1 x 1 convolution has
    up to half a million such matrices. The specialized rule is elementwise, so one loop over
    elements replaces the loops over rows and columns. Only reductions over the whole parameter
    still end a sweep.
    """
    states = tuple(
        replace(s, shape="like") if s.shape in ("row", "col") else s for s in algorithm.states
    )
    return replace(algorithm, states=states, rule=map_expressions(algorithm.rule, _specialized))


def _specialized(expr: Expr) -> Expr:
    expr = rebuild(expr, _specialized)
    match expr:
        case Call("row_mean" | "col_mean" | "row_sum" | "col_sum", (x,)):
            return x
        case Call(
            "row_norm" | "col_norm" | "row_rms" | "col_rms" | "row_max_abs" | "col_max_abs", (x,)
        ):
            return Call("abs", (x,), expr.place)
        case Call("rows" | "cols", _):
            return Const(1)
    return expr
