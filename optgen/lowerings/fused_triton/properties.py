"""Print loads of a parameter's properties (shape and dtype) from a bucket's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optgen.ir.nodes import Call, Expr, walk

_LOADS: Mapping[str, tuple[str, str]] = {
    "numel": ("numel", "tl.load(shape + WHOLE_NUMEL * num_tensors).to(tl.float64)"),
    "ndim": ("ndim", "tl.load(shape + NDIM * num_tensors).to(tl.float64)"),
    "rows": ("row_count", "tl.load(shape + ROWS * num_tensors).to(tl.float64)"),
    "cols": ("column_count", "tl.load(shape + COLUMNS * num_tensors).to(tl.float64)"),
    "machine_eps": (
        "machine_eps",
        "tl.load(shape + EPS * num_tensors).to(tl.float64, bitcast=True)",
    ),
}
"""Variable of each property, and the expression that loads it."""


def read_property(expr: Expr) -> str | None:
    """Return the variable of an expression that is a property, else None."""
    return _LOADS[expr.op][0] if isinstance(expr, Call) and expr.op in _LOADS else None


def load_properties(exprs: Iterable[Expr]) -> list[str]:
    """Return the lines that load the properties in these expressions."""
    ops = {e.op for expr in exprs for e in walk(expr) if isinstance(e, Call)}
    return [f"{name} = {value}" for word, (name, value) in _LOADS.items() if word in ops]
