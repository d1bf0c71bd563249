"""Find the tensors that a rule on whole matrices must copy before it computes.

Such a rule writes its results at its end, one tensor after another. A result is usually a new
tensor. But after `m, n = n, m` the result `m` is the old tensor of `n`, and vice versa. After
`U = transpose(U)` the result is a view of the old tensor of `U`. Without copies, a write would
overwrite old values that a later write, or the rest of the same write, reads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from optgen.ir.nodes import Assign, Call, Expr, Linear, Program, Ref, children, only_factor
from optgen.ir.ops import OPS

_NEW_CATEGORIES = ("arithmetic", "comparison", "logic", "reduction", "wide reduction")
_NEW_OPS = (
    *("@", "qr", "eigenvectors", "eigenvalues", "inverse_root", "trace", "descending", "copy"),
    "empty_like",
)


@dataclass(frozen=True)
class _Source:
    """Stored tensor whose memory a value shares: the value is this tensor, or a view of it."""

    name: str
    is_view: bool = False


_Sources = frozenset[_Source]
_SourcesByName = dict[str, _Sources]  # by the names of variables


def tensors_to_copy(program: Program, stored: Collection[str]) -> frozenset[str]:
    """Return the stored tensors that must be copied, because a result shares their memory.

    A result that is still the old tensor of its name needs no copy: to write it changes nothing.
    """
    known = _sources_after(program, {name: frozenset({_Source(name)}) for name in stored})
    return frozenset(
        source.name for name in stored for source in known[name] if source != _Source(name)
    )


def _sources_after(program: Program, known: _SourcesByName) -> _SourcesByName:
    """Return the sources of all variables after a program. After a branch, both arms' sources."""
    for stmt in program:
        if isinstance(stmt, Assign):
            known = {**known, stmt.target.name: _sources(stmt.value, known)}
        else:
            arms = [_sources_after(arm, known) for arm in (stmt.then, stmt.orelse)]
            known = {
                name: frozenset().union(*(arm.get(name, frozenset()) for arm in arms))
                for name in {**arms[0], **arms[1]}
            }
    return known


def _sources(value: Expr, known: _SourcesByName) -> _Sources:
    """Return the stored tensors whose memory a value may share."""
    value = only_factor(value)
    match value:
        case Ref(name):
            return known.get(name, frozenset())
        case Linear():
            return frozenset()
        case Call(op, _) if _makes_new_tensor(op):
            return frozenset()
    operands = frozenset().union(*(_sources(child, known) for child in children(value)))
    if isinstance(value, Call) and value.op == "where":
        return operands
    return frozenset(replace(source, is_view=True) for source in operands)


def _makes_new_tensor(op: str) -> bool:
    """Tell whether the result of an op is certainly a new tensor."""
    category = OPS[op].category if op in OPS else ""
    if category == "function":
        return op != "where"
    return category in _NEW_CATEGORIES or op in _NEW_OPS
