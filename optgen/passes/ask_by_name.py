"""A number of a tuple is asked for by the name that the author has given it.

For printing: the kind of `eps[0] is None` is known from the declaration of `eps`.
"""

from __future__ import annotations

from collections import Counter

from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, assigns, rebuild
from optgen.passes.rewrite import map_expressions


def ask_by_name(program: Program) -> Program:
    """The same scalar program, with `eps1` for `eps[0]` below the line that says so."""
    written = Counter(assign.target.name for assign in assigns(program))
    names: dict[Expr, Ref] = {}

    def named(expr: Expr) -> Expr:
        return names.get(expr) or rebuild(expr, named)

    out: Program = ()
    for stmt in program:
        if isinstance(stmt, Assign) and is_item(stmt.value):
            out += (stmt,)
            if written[stmt.target.name] == 1:
                names[stmt.value] = stmt.target
        else:
            out += map_expressions((stmt,), named)
    return out


def is_item(value: Expr) -> bool:
    """Whether a value is one number of a tuple."""
    return isinstance(value, Call) and value.op == "item"
