"""Insert the roundings of a scalar state's computation, where torch's for-loop rounds.

torch keeps a scalar state in a 0-dim tensor, and every result computed with that tensor is a 0-dim
tensor of the same dtype. So in an assignment to the state, an operation with an operand that
derives from the state runs in the state's dtype, on operands of that dtype. All other operations
run on Python floats. Outside of assignments to the state, the state is read as a float.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import Call, Const, Expr, Ref, refs
from optgen.ir.ops import CONDITION_OPERANDS

ROUNDED = "in_state_dtype"
"""Op that rounds to the state's dtype. Only the printers of C++ and Triton get it."""

_LARGEST_EXACT = 256  # every floating-point dtype represents all integers up to 256


def round_state(value: Expr, state: str) -> Expr:
    """Return the value assigned to a scalar state, with every rounding explicit."""
    if isinstance(value, Call) and _derives_from(value, state):
        value = replace(value, args=_operands(value, state))
    return value if _is_exact(value, state) else Call(ROUNDED, (value,))


def _derives_from(expr: Expr, state: str) -> bool:
    """Tell whether an expression is computed from the state."""
    return any(ref.name == state for ref in refs(expr))


def _operands(call: Call, state: str) -> tuple[Expr, ...]:
    """Return the rounded operands of an op, one of which derives from the state."""
    num_conditions = CONDITION_OPERANDS.get(call.op, 0)
    conditions = (_condition(arg, state) for arg in call.args[:num_conditions])
    return (*conditions, *(round_state(arg, state) for arg in call.args[num_conditions:]))


def _condition(expr: Expr, state: str) -> Expr:
    """Return a condition whose comparisons with the state are in the state's dtype."""
    if isinstance(expr, Call) and _derives_from(expr, state):
        return replace(expr, args=_operands(expr, state))
    return expr


def _is_exact(expr: Expr, state: str) -> bool:
    """Tell whether rounding changes nothing: for the state itself, and for small integers."""
    match expr:
        case Ref(name):
            return name == state
        case Const(int() as value):
            return abs(value) <= _LARGEST_EXACT
    return False
