"""Where the computation of a scalar state rounds: as torch's for-loop does, along its tensor.

Torch keeps such a state in a 0-dim tensor of its own dtype, and whatever is computed with that
tensor is such a tensor again. In an assignment to the state, an operation one of whose operands
derives from the state is therefore done in the state's dtype, on operands of that dtype; all else
is a Python float. Outside of assignments to it the state is read as a float.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import Call, Const, Expr, Ref, refs
from optgen.ir.ops import CONDITIONS

ROUNDED = "rounded"
"""The word that printers of a compiled language are asked for, and for no other."""

_WHOLE = 256  # up to here every number type has every whole number


def round_state(value: Expr, state: str) -> Expr:
    """The value assigned to a scalar state, with every rounding written out."""
    if isinstance(value, Call) and derives(value, state):
        value = replace(value, args=_operands(value, state))
    return value if _is_exact(value, state) else Call(ROUNDED, (value,))


def derives(expr: Expr, state: str) -> bool:
    """Whether an expression is computed from the state."""
    return any(ref.name == state for ref in refs(expr))


def _operands(call: Call, state: str) -> tuple[Expr, ...]:
    """Return the operands of a word of which one derives from the state: numbers are rounded."""
    asked = CONDITIONS.get(call.op, 0)
    conditions = (_condition(arg, state) for arg in call.args[:asked])
    return (*conditions, *(round_state(arg, state) for arg in call.args[asked:]))


def _condition(expr: Expr, state: str) -> Expr:
    """Return a truth value as it is; what it compares is rounded where the state is compared."""
    if isinstance(expr, Call) and derives(expr, state):
        return replace(expr, args=_operands(expr, state))
    return expr


def _is_exact(expr: Expr, state: str) -> bool:
    """Whether rounding to the state's type changes nothing: the state, or a small whole number."""
    match expr:
        case Ref(name):
            return name == state
        case Const(int() as value):
            return abs(value) <= _WHOLE
    return False
