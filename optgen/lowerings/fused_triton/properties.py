"""What a kernel knows of a parameter's shape and type: a row of a bucket's tables each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optgen.ir.nodes import Call, Expr, walk

_LOADS: Mapping[str, tuple[str, str]] = {
    "numel": ("numel", "tl.load(row + NUMEL * tensors).to(tl.float64)"),
    "ndim": ("ndim", "tl.load(shape + NDIM * tensors).to(tl.float64)"),
    "rows": ("row_count", "tl.load(shape + ROWS * tensors).to(tl.float64)"),
    "cols": ("column_count", "tl.load(shape + COLUMNS * tensors).to(tl.float64)"),
    "machine_eps": (
        "machine_eps",
        "tl.load(shape + EPS * tensors).to(tl.float64, bitcast=True)",
    ),
}
"""A property's variable, and the number it is given."""


def read_property(expr: Expr) -> str | None:
    """The variable of a property, if the expression is one."""
    return _LOADS[expr.op][0] if isinstance(expr, Call) and expr.op in _LOADS else None


def load_properties(exprs: Iterable[Expr]) -> list[str]:
    """The lines that give the properties in these expressions their values."""
    asked = {e.op for expr in exprs for e in walk(expr) if isinstance(e, Call)}
    return [f"{name} = {value}" for word, (name, value) in _LOADS.items() if word in asked]
