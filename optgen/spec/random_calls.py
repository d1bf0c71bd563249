"""Read calls that draw random numbers, such as `random(seed, stream)`, and number them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from optgen.ir.nodes import (
    Call,
    Const,
    Expr,
    Program,
    Ref,
    expressions,
    map_expressions,
    rebuild,
    walk,
)
from optgen.ir.ops import DRAWING_OPS, NUM_SEEDS

if TYPE_CHECKING:
    from optgen.spec.expressions import Expressions

_MAX_CALLS = 256  # eight bits of the generator's key hold the number of the call


def read_random_call(reader: Expressions, node: ast.Call, name: str) -> Expr:
    """Read a call of `random` or `random16`, and append the step count and the call's number."""
    algorithm, scope = reader.scope.algorithm, reader.scope
    if algorithm.is_function:
        hint = f"only a rule of an @optimizer may call {name}"
        reader.source.error(node, f"`{name}` counts steps, which a function does not", hint)
    seed_and_stream = [reader.number(argument) for argument in node.args]
    for number, argument in zip(seed_and_stream, node.args, strict=True):
        if not scope.kind(number).is_scalar:
            hint = "write a number that is not computed from tensors"
            reader.source.error(argument, f"`{name}` takes two numbers", hint)
    return Call(name, keys_of_draw(reader, node, name, seed_and_stream), reader.source.place(node))


def keys_of_draw(
    reader: Expressions, node: ast.expr, name: str, seed_and_stream: Iterable[Expr]
) -> tuple[Expr, ...]:
    """Return the keys of a draw: seed, stream, step count, and the number of the call in the rule.

    `seed_and_stream` are as the author wrote them.

    Raises:
        SpecError: the rule has no step count, or too many draws.
    """
    algorithm, scope = reader.scope.algorithm, reader.scope
    if algorithm.step is None:
        hint = "add the step count to the inputs: p, g, t, /"
        reader.source.error(node, f"`{name}` needs the step count", hint)
    if scope.draw_count == _MAX_CALLS:
        message = f"more than {_MAX_CALLS} calls of `{name}`"
        reader.source.error(node, message, "draw once, and scale")
    step = Ref(algorithm.step, 0, reader.source.place(node))
    scope.read.add(algorithm.step)
    scope.draw_count += 1
    return (*map(_as_key, seed_and_stream), step, Const(scope.draw_count - 1))


def _as_key(number: Expr) -> Expr:
    """Return the expression of a seed or stream as a whole number below `NUM_SEEDS`."""
    return Call("floor", (Call("%", (number, Const(NUM_SEEDS))),))


def number_calls(rule: Program) -> Program:
    """Return the rule with its draws numbered from 0, in the order of their appearance.

    The reader numbers draws as it reads them. Draws that do not get into the rule leave gaps.
    """
    old_numbers = (
        node.args[-1]
        for expr in expressions(rule)
        for node in walk(expr)
        if isinstance(node, Call) and node.op in DRAWING_OPS
    )
    new_numbers = {old: Const(new) for new, old in enumerate(dict.fromkeys(old_numbers))}

    def numbered(expr: Expr) -> Expr:
        inner = rebuild(expr, numbered)
        if isinstance(inner, Call) and inner.op in DRAWING_OPS:
            return replace(inner, args=(*inner.args[:-1], new_numbers[inner.args[-1]]))
        return inner

    return map_expressions(rule, numbered) if new_numbers else rule
