"""Inline short scalars that are used once: `1 - beta1` is easier to read than a generated name."""

from __future__ import annotations

from collections import Counter

from optgen.ir.nodes import (
    Call,
    Const,
    Expr,
    Program,
    Ref,
    assigns,
    expressions,
    filter_assigns,
    map_values,
    on_every_path,
    rebuild,
    refs,
    walk,
)
from optgen.ir.plan import Plan
from optgen.passes.linear_forms import is_number

_MAX_OPERATORS = 2


def inline_scalars(plan: Plan) -> Plan:
    """Return the plan with short generated scalars and inverses inlined where they are read.

    The author's names stay. A scalar also stays if a name that its definition reads changes later.
    """
    inlined = _inlinable_scalars(plan)

    def change(expr: Expr) -> Expr:
        if isinstance(expr, Ref) and expr in inlined:
            return change(inlined[expr])
        return rebuild(expr, change)

    def inline(program: Program) -> Program:
        return map_values(filter_assigns(program, lambda a: a.target not in inlined), change)

    return plan.map_programs(inline)


def _inlinable_scalars(plan: Plan) -> dict[Ref, Expr]:
    """Map each scalar that is to be inlined to its definition."""
    use_counts = Counter(r for e in (*plan.values(), *expressions(plan.scalars)) for r in refs(e))
    generated = {a.target for a in assigns(plan.scalars) if not a.quote}
    states = {s.symbol for s in plan.algorithm.states}
    last_versions = {a.target.name: a.target for a in assigns(plan.scalars)}

    def reads_last_versions(value: Expr) -> bool:
        return all(last_versions.get(ref.name, ref) == ref for ref in refs(value))

    return {
        ref: value
        for ref, value in definitions(plan).items()
        if ref in generated and ref.name not in states and reads_last_versions(value)
        # Inlining an inverse costs nothing, because torch divides as fast as it multiplies.
        if _is_inverse(value) or (use_counts[ref] == 1 and _is_short(value))
    }


def _is_inverse(expr: Expr) -> bool:
    match expr:
        case Call("/", (one, Ref())):
            return is_number(one, 1)
    return False


def _is_short(expr: Expr) -> bool:
    """Tell whether a value consists of names, numbers, and one or two operators + - *."""
    inner_nodes = [e for e in walk(expr) if not isinstance(e, Const | Ref)]
    operators = [e for e in inner_nodes if isinstance(e, Call) and e.op in ("+", "-", "*", "neg")]
    return len(operators) == len(inner_nodes) and 0 < len(operators) <= _MAX_OPERATORS


_MAX_NODES = 1000
"""The number of nodes after which no more names are replaced."""


def definitions(plan: Plan) -> dict[Ref, Expr]:
    """Return the definition of every scalar that has exactly one.

    Several branches may repeat the same definition. A name that only one side of a branch assigns
    has two definitions if it had a value before the branch, because the other side keeps that
    value.
    """
    values: dict[Ref, Expr] = {}
    ambiguous: set[Ref] = set()
    for stmt in assigns(plan.scalars):
        if values.get(stmt.target, stmt.value) != stmt.value:
            ambiguous.add(stmt.target)
        values[stmt.target] = stmt.value
    always = on_every_path(plan.scalars, lambda target: target)
    states = {state.symbol for state in plan.algorithm.scalar_states()}
    names = [ref.name for ref in values]
    ambiguous |= {
        ref
        for ref in values.keys() - always
        if ref.name in states or names.count(ref.name) > 1  # the name had a value before
    }
    return {ref: value for ref, value in values.items() if ref not in ambiguous}


def expand_definitions(expr: Expr, definitions_by_name: dict[Ref, Expr]) -> Expr:
    """Return an expression with each of these names replaced by its definition, recursively.

    If the result would be very large, the last names stay: in `x = x * (x + 1)`, written forty
    times, the first `x` occurs in the last one 2**40 times.
    """
    num_nodes = 0

    def expanded(expr: Expr) -> Expr:
        nonlocal num_nodes
        num_nodes += 1
        if isinstance(expr, Ref) and expr in definitions_by_name and num_nodes < _MAX_NODES:
            return expanded(definitions_by_name[expr])
        return rebuild(expr, expanded)

    return expanded(expr)
