"""A rule for parameters of one kind: what it asks of a shape is answered, its branches decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import TypeGuard

from optgen.ir.algorithm import Algorithm, State
from optgen.ir.nodes import Assign, Call, Const, Expr, Program, Stmt, expressions, rebuild, walk
from optgen.ir.words import FACTS

Facts = Mapping[str, bool]


def facts_asked(algorithm: Algorithm) -> tuple[str, ...]:
    """The facts of a parameter (`factored`) that the rule or its states ask for."""
    asked = {s.when.removeprefix("not ") for s in algorithm.states if s.when}
    nodes = (node for expr in expressions(algorithm.rule) for node in walk(expr))
    asked |= {node.word for node in nodes if isinstance(node, Call)}
    return tuple(fact for fact in FACTS if fact in asked)


def cases(algorithm: Algorithm) -> Iterator[Facts]:
    """Every combination of answers, yes first; one without any where the rule asks nothing."""
    asked = facts_asked(algorithm)
    for answers in product((True, False), repeat=len(asked)):
        yield dict(zip(asked, answers, strict=True))


def assume(algorithm: Algorithm, facts: Facts) -> Algorithm:
    """The same algorithm for parameters of which these facts hold, or do not."""
    if not facts:
        return algorithm
    states = tuple(_without_fact(s, facts) for s in algorithm.states if _exists(s, facts))
    return replace(algorithm, states=states, rule=_decided(algorithm.rule, facts))


def _exists(state: State, facts: Facts) -> bool:
    fact = (state.when or "").removeprefix("not ")
    return fact not in facts or facts[fact] is not (state.when or "").startswith("not ")


def _without_fact(state: State, facts: Facts) -> State:
    fact = (state.when or "").removeprefix("not ")
    return replace(state, when=None) if fact in facts else state


def _decided(program: Program, facts: Facts) -> Program:
    out: list[Stmt] = []
    for stmt in program:
        if isinstance(stmt, Assign):
            out.append(replace(stmt, value=_answered(stmt.value, facts)))
            continue
        condition = _answered(stmt.condition, facts)
        then, orelse = _decided(stmt.then, facts), _decided(stmt.orelse, facts)
        match condition:
            case Const(bool() as holds):
                out += then if holds else orelse
            case _:
                out.append(replace(stmt, condition=condition, then=then, orelse=orelse))
    return tuple(out)


def _answered(expr: Expr, facts: Facts) -> Expr:
    """An expression with every fact in it answered, and with what follows from that."""
    match expr:
        case Call(word, _) if word in facts:
            return Const(facts[word], expr.place)
        case Call("not", (a,)):
            inner = _answered(a, facts)
            return Const(not inner.value) if _is_truth(inner) else replace(expr, args=(inner,))
        case Call("and" | "or" as word, (a, b)):
            left, right = _answered(a, facts), _answered(b, facts)
            for one, other in ((left, right), (right, left)):
                if _is_truth(one):
                    return one if one.value is (word == "or") else other
            return replace(expr, args=(left, right))
    return rebuild(expr, lambda child: _answered(child, facts))


def _is_truth(expr: Expr) -> TypeGuard[Const]:
    return isinstance(expr, Const) and isinstance(expr.value, bool)
