"""Name the items of tuples, because a `Finish` between two sweeps reads only names."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import free_name
from optgen.ir.kinds import declared_kinds
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Program,
    Ref,
    Stmt,
    assigns,
    rebuild,
)
from optgen.passes.reuse_item_names import is_item


def name_items(algorithm: Algorithm) -> Algorithm:
    """Return a rule with named items, before SSA form. An elementwise rule stays as it is."""
    if algorithm.elementwise:
        return algorithm
    used_names = {a.target.name for a in assigns(algorithm.rule)} | set(declared_kinds(algorithm))
    names: dict[Expr, Ref] = {}

    def with_names(expr: Expr) -> Expr:
        match expr:
            case Call("is_none", _):
                return expr
            case Call("item", (Ref(values), Const(index))):
                if expr not in names:
                    names[expr] = Ref(free_name(f"{values}_{index}", used_names))
                    used_names.add(names[expr].name)
                return names[expr]
        return rebuild(expr, with_names)

    item_names = _names_of_items(algorithm)

    def changed(stmt: Stmt) -> Stmt:
        if isinstance(stmt, If):
            then, orelse = tuple(map(changed, stmt.then)), tuple(map(changed, stmt.orelse))
            return replace(stmt, condition=with_names(stmt.condition), then=then, orelse=orelse)
        names_an_item = is_item(stmt.value) and stmt.target.name in item_names
        return stmt if names_an_item else replace(stmt, value=with_names(stmt.value))

    rule = tuple(map(changed, algorithm.rule))
    assignments: Program = tuple(Assign(name, item) for item, name in names.items())
    return replace(algorithm, rule=(*assignments, *rule))


def _names_of_items(algorithm: Algorithm) -> set[str]:
    """Return the names, such as `beta1`, to which the rule assigns bare items and nothing else.

    A statement that assigns an item to any other name may become a part of a `Finish`.
    """
    items = {a.target.name for a in assigns(algorithm.rule) if is_item(a.value)}
    others = {a.target.name for a in assigns(algorithm.rule) if not is_item(a.value)}
    return items - others - set(declared_kinds(algorithm))
