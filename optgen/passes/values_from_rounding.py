"""Find the values that derive from a rounding: their sums are computed in the order of the spec.

After `new = rounded(p + y)`, `c = y - (new - p)` is what the rounding has lost. The difference of
the nearly equal numbers `new` and `p` is exact. But `y - new` would be rounded, so `c` must not
become `y - new + p`. Algebra therefore leaves such sums alone.
"""

from __future__ import annotations

from optgen.ir.nodes import Call, Expr, Program, Ref, assigns, children
from optgen.ir.ops import STORAGE_OPS


def rounded_refs(rule: Program) -> frozenset[Ref]:
    """Return the names of a rule in SSA form whose values derive from a rounding of this step."""
    rounded: set[Ref] = set()
    while True:
        derived = {a.target for a in assigns(rule) if derives_from_rounding(a.value, rounded)}
        if derived <= rounded:
            return frozenset(rounded)
        rounded |= derived


def derives_from_rounding(expr: Expr, rounded: frozenset[Ref] | set[Ref]) -> bool:
    """Tell whether an expression calls a rounding or reads a name that derives from one.

    A `where` derives from its two values only: its condition adds no digits.
    """
    stack = [expr]
    while stack:
        node = stack.pop()
        if node in rounded if isinstance(node, Ref) else _is_rounding(node):
            return True
        is_choice = isinstance(node, Call) and node.op == "where"
        stack += children(node)[1:] if is_choice else children(node)
    return False


def _is_rounding(node: Expr) -> bool:
    return isinstance(node, Call) and node.op in STORAGE_OPS
