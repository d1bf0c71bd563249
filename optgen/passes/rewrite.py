"""Rebuild programs statement by statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, Stmt, rebuild


def map_values(program: Program, change: Callable[[Expr], Expr]) -> Program:
    """Return the program with `change` applied to the value of every assignment."""
    return tuple(
        replace(stmt, value=change(stmt.value))
        if isinstance(stmt, Assign)
        else replace(
            stmt, then=map_values(stmt.then, change), orelse=map_values(stmt.orelse, change)
        )
        for stmt in program
    )


def filter_assigns(program: Program, keep: Callable[[Assign], bool]) -> Program:
    """Return the program with only the assignments that `keep` accepts, without empty branches."""
    out: list[Stmt] = []
    for stmt in program:
        if isinstance(stmt, Assign):
            out += [stmt] if keep(stmt) else []
            continue
        then, orelse = filter_assigns(stmt.then, keep), filter_assigns(stmt.orelse, keep)
        if then or orelse:
            out.append(replace(stmt, then=then, orelse=orelse))
    return tuple(out)


def replace_reads(expr: Expr, new_names: Mapping[Ref, Ref]) -> Expr:
    """Return an expression with its reads renamed; the state names in `fresh` stay."""
    match expr:
        case Ref():
            return new_names.get(expr, expr)
        case Call("fresh", _):
            return expr
    return rebuild(expr, lambda child: replace_reads(child, new_names))
