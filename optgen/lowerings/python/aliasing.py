"""Find the tensors that a rule on whole matrices must copy before it computes.

Such a rule writes its results at its end, one tensor after another. A result is usually a new
tensor. But after `m, n = n, m` each result is the other's old tensor, and after `U = transpose(U)`
the result is a view of its own old tensor. Without copies, a write would overwrite old values that
a later write, or the rest of the same write, reads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from optgen.ir.copies import only_factor
from optgen.ir.nodes import Assign, Call, Expr, Linear, Program, Ref, children
from optgen.ir.ops import OPS

_NEW_CATEGORIES = ("arithmetic", "comparison", "logic", "reduction", "wide reduction")
_NEW_OPS = (
    *("@", "qr", "eigenvectors", "eigenvalues", "inverse_root", "trace", "descending", "copy"),
    "empty_like",
)


@dataclass(frozen=True)
class _Source:
    """A stored tensor whose memory a value shares: all of it in place, or through a view."""

    name: str
    is_view: bool = False


_Sources = frozenset[_Source]
_Known = dict[str, _Sources]  # of each variable


def read_after_write(program: Program, stored: Collection[str]) -> frozenset[str]:
    """Return the stored tensors whose memory a result shares, other than as their own value."""
    known = _after(program, {name: frozenset({_Source(name)}) for name in stored})
    return frozenset(
        source.name for name in stored for source in known[name] if source != _Source(name)
    )


def _after(program: Program, known: _Known) -> _Known:
    """Return what is known after a program. After a branch, a value is that of either arm."""
    for stmt in program:
        if isinstance(stmt, Assign):
            known = {**known, stmt.target.name: _sources(stmt.value, known)}
        else:
            arms = [_after(arm, known) for arm in (stmt.then, stmt.orelse)]
            known = {
                name: frozenset().union(*(arm.get(name, frozenset()) for arm in arms))
                for name in {**arms[0], **arms[1]}
            }
    return known


def _sources(value: Expr, known: _Known) -> _Sources:
    """Return the stored tensors whose memory a value may share."""
    value = only_factor(value)
    match value:
        case Ref(name):
            return known.get(name, frozenset())
        case Linear():
            return frozenset()
        case Call(op, _) if _is_new(op):
            return frozenset()
    below = frozenset().union(*(_sources(child, known) for child in children(value)))
    if isinstance(value, Call) and value.op == "where":
        return below
    return frozenset(replace(source, is_view=True) for source in below)


def _is_new(op: str) -> bool:
    """Tell whether the result of an op is a new tensor; if in doubt, it is not."""
    category = OPS[op].category if op in OPS else ""
    if category == "function":
        return op != "where"
    return category in _NEW_CATEGORIES or op in _NEW_OPS
