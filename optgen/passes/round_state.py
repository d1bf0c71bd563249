"""Where the computation of a scalar state rounds: as torch's for-loop does, along its tensor.

Torch keeps such a state in a 0-dim tensor of its own dtype, and whatever is computed with that
tensor is such a tensor again. In an assignment to the state, an operation one of whose operands
derives from the state is therefore done in the state's dtype, on operands of that dtype; all else
is a Python float. Outside of assignments to it the state is read as a float.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import Call, Const, Expr, Ref, refs
from optgen.ir.words import WORDS

ROUNDED = "rounded"
"""The word that printers of a compiled language are asked for, and for no other."""

_WHOLE = 256  # up to here every number type has every whole number


def round_state(value: Expr, state: str) -> Expr:
    """The value assigned to a scalar state, with every rounding written out."""
    if isinstance(value, Call) and derives(value, state):
        value = replace(value, args=tuple(_operand(arg, state) for arg in value.args))
    return value if _is_exact(value, state) else Call(ROUNDED, (value,))


def derives(expr: Expr, state: str) -> bool:
    """Whether an expression is computed from the state."""
    return any(ref.name == state for ref in refs(expr))


def _operand(expr: Expr, state: str) -> Expr:
    """An operand beside one that derives from the state; truth values stay what they are."""
    if not isinstance(expr, Call) or WORDS[expr.word].sort not in ("comparison", "logic"):
        return round_state(expr, state)
    if derives(expr, state):
        return replace(expr, args=tuple(_operand(arg, state) for arg in expr.args))
    return expr


def _is_exact(expr: Expr, state: str) -> bool:
    """Whether rounding to the state's type changes nothing: the state, or a small whole number."""
    match expr:
        case Ref(name):
            return name == state
        case Const(int() as value):
            return abs(value) <= _WHOLE
    return False
