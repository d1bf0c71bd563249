"""Replace tuple items such as `eps[0]` by the names that the author unpacked them into.

Run this pass right before printing: earlier passes learn the type of `eps[0] is None` from the
declaration of `eps`.
"""

from __future__ import annotations

from collections import Counter

from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, assigns, map_expressions, rebuild


def reuse_item_names(program: Program) -> Program:
    """Return a scalar program that reads `eps1`, not `eps[0]`, after `eps1 = eps[0]`."""
    assign_counts = Counter(assign.target.name for assign in assigns(program))
    names: dict[Expr, Ref] = {}

    def named(expr: Expr) -> Expr:
        return names.get(expr) or rebuild(expr, named)

    out: Program = ()
    for stmt in program:
        if isinstance(stmt, Assign) and is_item(stmt.value):
            out += (stmt,)
            if assign_counts[stmt.target.name] == 1:
                names[stmt.value] = stmt.target
        else:
            out += map_expressions((stmt,), named)
    return out


def is_item(value: Expr) -> bool:
    """Tell whether a value is one item of a tuple."""
    return isinstance(value, Call) and value.op == "item"
