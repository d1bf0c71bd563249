"""Name the parameter's properties that conditions read, since conditions may read only names."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import free_name
from optgen.ir.kinds import declared_kinds
from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, assigns, rebuild
from optgen.ir.ops import OPS, PROPERTIES, STORAGE_OPS


def name_properties(algorithm: Algorithm) -> Algorithm:
    """Return a rule, before SSA form, that begins by naming the properties that conditions read."""
    used_names = {a.target.name for a in assigns(algorithm.rule)} | set(declared_kinds(algorithm))
    assignments: dict[str, Assign] = {}

    def named(expr: Expr) -> Expr:
        if isinstance(expr, Call) and expr.op in STORAGE_OPS:  # its last operand names the dtype
            return replace(expr, args=(*map(named, expr.args[:-1]), expr.args[-1]))
        if not isinstance(expr, Call) or expr.op not in PROPERTIES:
            return rebuild(expr, named)
        if expr.op not in assignments:
            target = Ref(free_name(f"param_{expr.op}", used_names))
            used_names.add(target.name)
            assignments[expr.op] = Assign(target, expr)
        return assignments[expr.op].target

    def in_conditions(expr: Expr) -> Expr:
        is_condition = isinstance(expr, Call) and OPS[expr.op].category in ("comparison", "logic")
        return named(expr) if is_condition else rebuild(expr, in_conditions)

    def changed(program: Program) -> Program:
        return tuple(
            replace(stmt, value=in_conditions(stmt.value))
            if isinstance(stmt, Assign)
            else replace(
                stmt,
                condition=named(stmt.condition),
                then=changed(stmt.then),
                orelse=changed(stmt.orelse),
            )
            for stmt in program
        )

    rule = changed(algorithm.rule)
    return replace(algorithm, rule=(*assignments.values(), *rule))
