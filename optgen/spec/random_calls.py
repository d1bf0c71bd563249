"""Read calls of `random(seed, stream)`, and check that a rule can draw random numbers."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    Program,
    Ref,
    expressions,
    rebuild,
    walk,
)
from optgen.ir.ops import FACTS, MATRIX_OPS, RANDOM_OPS, REDUCTIONS
from optgen.ir.random_numbers import SEEDS
from optgen.spec.source import Source

if TYPE_CHECKING:
    from optgen.spec.expressions import Expressions

_CALLS = 256  # eight bits of the generator's key hold the number of the call


def read_random_call(reader: Expressions, node: ast.Call, name: str) -> Expr:
    """Read the two numbers, and add the step count and the number of the call in the rule."""
    algorithm, scope = reader.scope.algorithm, reader.scope
    if algorithm.is_function:
        hint = f"only a rule of an @optimizer may call {name}"
        reader.source.error(node, f"`{name}` counts steps, which a function does not", hint)
    if algorithm.step is None:
        hint = "add the step count to the inputs: p, g, t, /"
        reader.source.error(node, f"`{name}` needs the step count", hint)
    numbers = [reader.number(argument) for argument in node.args]
    for number, argument in zip(numbers, node.args, strict=True):
        if not scope.kind(number).is_scalar:
            hint = "write a number that no tensor takes part in"
            reader.source.error(argument, f"`{name}` takes two numbers", hint)
    if scope.draws == _CALLS:
        reader.source.error(node, f"more than {_CALLS} calls of `{name}`", "draw once, and scale")
    place = reader.source.place(node)
    step = Ref(algorithm.step, 0, place)
    scope.read.add(algorithm.step)
    scope.draws += 1
    return Call(name, (*map(_as_key, numbers), step, Const(scope.draws - 1)), place)


def _as_key(number: Expr) -> Expr:
    """Return a number as a whole number that the generator takes."""
    return Call("floor", (Call("%", (number, Const(SEEDS))),))


def number_calls(rule: Program) -> Program:
    """Return the rule with its calls of `random` numbered in the order of their appearance."""
    found = (
        node.args[-1]
        for expr in expressions(rule)
        for node in walk(expr)
        if isinstance(node, Call) and node.op in RANDOM_OPS
    )
    numbers = {old: Const(new) for new, old in enumerate(dict.fromkeys(found))}

    def numbered(expr: Expr) -> Expr:
        inner = rebuild(expr, numbered)
        if isinstance(inner, Call) and inner.op in RANDOM_OPS:
            return replace(inner, args=(*inner.args[:-1], numbers[inner.args[-1]]))
        return inner

    return _map(rule, numbered) if numbers else rule


def _map(program: Program, change: Callable[[Expr], Expr]) -> Program:
    """Return a program with every value and condition replaced by `change(value)`."""
    return tuple(
        replace(stmt, value=change(stmt.value))
        if isinstance(stmt, Assign)
        else replace(
            stmt,
            condition=change(stmt.condition),
            then=_map(stmt.then, change),
            orelse=_map(stmt.orelse, change),
        )
        for stmt in program
    )


def check_random(source: Source, algorithm: Algorithm) -> None:
    """Check that a rule that draws random numbers works element by element otherwise."""
    if not algorithm.draws:
        return
    hint = "draw random numbers in a rule without words of whole parameters"
    for expr in expressions(algorithm.rule):
        for node in walk(expr):
            if isinstance(node, Call) and node.op in (*REDUCTIONS, *MATRIX_OPS, *FACTS):
                source.error_at(node.place, f"`{node.op}` beside `random` is not possible", hint)
    for state in algorithm.states:
        if state.shape in ("row", "col") or (state.when or "").removeprefix("not ") in FACTS:
            message = f"the state `{state.symbol}` beside `random` is not possible"
            source.error_at(state.place, message, hint)
