"""Which names generated code makes of a variable's name, and which it uses itself."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Iterable

_BUILT_IN: tuple[str, ...] = (
    "ValueError",
    "all",
    "float",
    "isinstance",
    "len",
    "list",
    "max",
    "min",
    "range",
)
_BUILT_IN += ("self", "sum", "super", "tuple", "zip")
RUNTIME: dict[str, tuple[str, ...]] = {
    "blocks": ("as_one", "blocks", "is_cut", "list_blocks", "lists_as_one", "portions", "shares"),
    "foreach": ("scale_",),
    "matrix": ("orthogonalize",),
    "properties": ("cols", "rows"),
    "reductions": (
        *("col_sum", "col_sum_of_squares", "max_abs", "max_abses", "no_col_sum", "no_row_sum"),
        *("no_sum", "number", "row_sum", "row_sum_of_squares", "sum_of_squares", "total", "totals"),
        "write",
    ),
    "scalars": (
        *("advance", "advance_one", "both", "clamp", "divide", "either", "exp", "holds"),
        *("in_type_of", "lerp", "log", "maximum", "minimum", "opposite", "power", "read_one"),
        *("remainder", "sign", "sqrt", "store", "store_one", "where"),
    ),
    "sharded.driver": ("Update",),
    "sharded.split": ("Split",),
    "slices": ("cuts", "slices"),
}
"""The modules of optgen.runtime, and the functions and types of theirs in generated Python."""

PYTHON = frozenset(
    (
        *(name for names in RUNTIME.values() for name in names),
        *(*_BUILT_IN, "Tensor", "math", "replace", "torch"),
        *("_update", "blocked", "capturable", "cut", "index", "share", "split", "whole"),
    )
)
"""What generated Python uses besides the words of the language."""


def plural(name: str) -> str:
    """The list of what `name` is one of."""
    several = f"{name}s"
    return f"{name}_list" if name.endswith("s") or keyword.iskeyword(several) else several


def capitals(name: str) -> str:
    """The number or the parameter of a template that belongs to a variable."""
    upper = name.upper()
    return upper if upper != name else f"{upper}_"


def escaped(name: str, reserved: Collection[str]) -> str:
    """A name beside those that mean something else where it will stand."""
    return f"{name}_" if name.rstrip("_") in reserved else name


def relatives(name: str) -> frozenset[str]:
    """What printers call things that belong to a variable: its list, its old value, its type."""
    sides = (f"{name}{suffix}" for suffix in ("_then", "_else", "_unscaled"))
    own = (
        plural(name),
        f"old_{name}",
        f"fresh_{name}",
        capitals(name),
        f"{name.upper()}_T",
        *sides,
        f"{name}_block",
        plural(f"{name}_block"),
    )
    return frozenset(own) - {name}


def is_free(name: str, others: Iterable[str]) -> bool:
    """Whether a new variable may have this name beside the others."""
    names = set(others)
    if keyword.iskeyword(name) or not {name, *relatives(name)}.isdisjoint(names | PYTHON):
        return False
    return not any(name in relatives(other) or _meet(name, other) for other in names)


def _meet(name: str, other: str) -> bool:
    return not relatives(name).isdisjoint(relatives(other))
