"""Encode the values of choice hyperparameters as numbers, for kernels that know only numbers."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Hyper
from optgen.ir.nodes import Call, Const, Expr, Ref, map_expressions, rebuild
from optgen.ir.plan import Plan


def legend_of_choices(hyper: Hyper) -> str:
    """Return a comment that says which number stands for which choice; "" for other types."""
    values = ", ".join(f"{index} = {value!r}" for index, value in enumerate(hyper.choices))
    return f"{hyper.name}: {values}" if hyper.type == "choice" else ""


def encode_choices(plan: Plan) -> Plan:
    """Return the plan with choices compared by their index; -1 stands for any other value."""
    choices = {h.name: h.choices for h in plan.algorithm.hypers if h.type == "choice"}

    def index_of(name: str, value: str | None) -> Const:
        values = choices[name]
        return Const(values.index(value) if value in values else -1)

    def with_indices(expr: Expr) -> Expr:
        match expr:
            case Call("is_none", (Ref(name) as ref,)) if name in choices:
                return Call("==", (ref, index_of(name, None)), expr.place)
            case Call("==" | "!=", (Ref(name) as ref, Const(str() as value))) if name in choices:
                return replace(expr, args=(ref, index_of(name, value)))
        return rebuild(expr, with_indices)

    if not choices:
        return plan
    return plan.map_programs(lambda program: map_expressions(program, with_indices))
