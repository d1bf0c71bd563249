"""Derive descriptive names for scalar expressions, such as `bias_correction2`."""

from __future__ import annotations

from optgen.ir.nodes import Call, Const, Expr, Ref
from optgen.ir.ops import OPS


def scalar_name(expr: Expr) -> str:
    """Return a name derived from the expression, or "" if the caller should choose the name."""
    match expr:
        case Call("-", (Const(1), Call("**", (Ref(base), Ref("step"))))):
            digits = base.lstrip("abcdefghijklmnopqrstuvwxyz_")
            return f"bias_correction{digits}"
        case Call("-", (Const(1), Ref(name))):
            return f"one_minus_{name}"
        case Call("floor", (Call("%", (Ref(name), Const(16777216))),)):  # 24 bits of a seed
            return f"{name}_key"
        case Call("machine_eps", _):
            return "machine_eps"
        case Call("**", (Ref(name), Const(2))):
            return f"{name}_sq"
        case Call("sqrt", (inner,)):
            inside = inner.name if isinstance(inner, Ref) else scalar_name(inner)
            return f"{inside}_sqrt" if inside else ""
        case Call("/", (Const(1), Call(word, (Ref(),)))) if OPS[word].category == "property":
            return f"one_over_{word}"
        case Call("/", (Const(1), denom)):
            inside = denom.name if isinstance(denom, Ref) else scalar_name(denom)
            return f"inverse_{inside}" if inside else ""
        case _:
            return ""
