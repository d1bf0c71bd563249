"""Name the items of tuples, because a `Finish` between two sweeps reads only names."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.binding_times import declared_kinds
from optgen.ir.generated_names import free_name
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    Program,
    Ref,
    assigns,
    map_expressions,
    rebuild,
)


def name_items(algorithm: Algorithm) -> Algorithm:
    """Return a rule, not yet in SSA form, with named items; an elementwise rule stays as it is."""
    if algorithm.elementwise:
        return algorithm
    taken = {a.target.name for a in assigns(algorithm.rule)} | set(declared_kinds(algorithm))
    names: dict[Expr, Ref] = {}

    def named(expr: Expr) -> Expr:
        match expr:
            case Call("is_none", _):
                return expr
            case Call("item", (Ref(values), Const(index))):
                if expr not in names:
                    names[expr] = Ref(free_name(f"{values}_{index}", taken))
                    taken.add(names[expr].name)
                return names[expr]
        return rebuild(expr, named)

    def changed(expr: Expr) -> Expr:
        has_name = isinstance(expr, Call) and expr.op == "item"  # as in `beta1 = betas[0]`
        return expr if has_name else named(expr)

    rule = map_expressions(algorithm.rule, changed)
    namings: Program = tuple(Assign(name, item) for item, name in names.items())
    return replace(algorithm, rule=(*namings, *rule))
