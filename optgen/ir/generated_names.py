"""Define names in generated code: those derived from a variable's name, and reserved names."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from itertools import chain, count

from optgen.ir.ops import SHADOWABLE_FUNCTIONS

_BUILT_IN = (
    *("ValueError", "all", "float", "isinstance", "len", "list", "max", "min", "range"),
    *("self", "sum", "super", "tuple", "zip"),
)
RUNTIME_NAMES: dict[str, tuple[str, ...]] = {
    "eager.linear_algebra": (
        *("cholesky", "col_ones", "descending", "descending_order", "diag", "eigenvalues"),
        *("eigenvectors", "eigh", "identity", "inverse_root", "lower", "newton_schulz"),
        *("permuted_columns", "permuted_rows", "qr", "row_ones", "singular_vectors"),
        *("solve_transposed", "solve_triangular", "trace", "transpose", "upper"),
    ),
    "eager.parts": (
        *("blocks", "chunks", "list_blocks", "list_chunks", "needs_blocks", "one_block"),
        *("one_list_block", "same_shape_sublists", "sublists", "zip_slices"),
    ),
    "eager.random_numbers": ("gaussian", "random", "random16"),
    "eager.reductions": (
        *("all_max", "all_sum", "col_max_abs", "col_sum", "col_sum_of_squares", "group_max"),
        *("group_sum", "max_abs", "number", "row_max_abs", "row_sum", "row_sum_of_squares"),
        *("stacked_max_abs", "stacked_numbers", "sum_of_squares", "total", "totals", "write"),
        *("zero_col_sum", "zero_row_sum", "zero_sum"),
    ),
    "eager.rounding": ("rounded", "rounded_at_random", "rounded_down", "rounded_up", "scale_"),
    "eager.scalars": (
        *("advance", "advance_one", "atan2", "both", "ceil", "clamp", "cos", "divide", "either"),
        *("exp", "floor", "holds", "in_dtype_of", "lerp", "log", "maximum", "minimum"),
        *(
            "numbers_of",
            "opposite",
            "power",
            "read_one",
            "remainder",
            "round",
            "sign",
            "sin",
            "sqrt",
            "store",
            "store_one",
        ),
        *("tanh", "where", "where_number"),
    ),
    "eager.tensor_lists": ("TensorList", "sweep_function"),
    "eager.working_copies": (
        *("copy_in_compute_dtype", "empty_like", "in_compute_dtype", "in_rows"),
        "in_wider_dtype",
        *("number_in_float64", "wider", "write_back", "write_number"),
    ),
    "matrix_ops": ("cols", "orthogonalize", "rows"),
    "sharded.driver": ("Collectives", "Update"),
}
"""Modules of optgen.runtime, and the names that generated Python imports from them."""

RESERVED_IN_PYTHON = frozenset(
    (
        *(name for names in RUNTIME_NAMES.values() for name in names),
        *(*_BUILT_IN, "Tensor", "math", "replace", "torch"),
        *("_update", "blocked", "capturable", "chunk", "index", "collectives", "sublist", "whole"),
    )
).difference(SHADOWABLE_FUNCTIONS)
"""Names that generated Python may use for any rule.

`passes/prepare_rule.py` reserves a function of SHADOWABLE_FUNCTIONS if the rule calls it.
"""


def plural(name: str) -> str:
    """Return the name of a list of values, given the name of one of them."""
    if name == "matrix" or name.endswith("_matrix"):
        return f"{name.removesuffix('ix')}ices"
    with_s = f"{name}s"
    return f"{name}_list" if name.endswith("s") or keyword.iskeyword(with_s) else with_s


def upper_case_name(name: str) -> str:
    """Return the upper-case name of the constant or template parameter of a variable."""
    upper = name.upper()
    return upper if upper != name else f"{upper}_"


def escaped(name: str, reserved: Collection[str]) -> str:
    """Return the name, with an underscore appended if it is reserved.

    `sum` becomes `sum_`, and `sum_` becomes `sum__`: so names that differ stay different.
    """
    return f"{name}_" if name.rstrip("_") in reserved else name


@lru_cache(maxsize=4096)
def derived_names(name: str) -> frozenset[str]:
    """Return the names that printers derive from a variable, as for its list, old value or type."""
    value_names = (f"{name}{suffix}" for suffix in ("_then", "_else", "_unscaled"))
    derived = (
        plural(name),
        f"old_{name}",
        f"fresh_{name}",
        upper_case_name(name),
        f"{name.upper()}_T",
        *value_names,
        f"{name}_block",
        plural(f"{name}_block"),
    )
    return frozenset(derived) - {name}


def is_free(name: str, used_names: Iterable[str]) -> bool:
    """Tell whether a new variable may have this name beside variables with the used names."""
    names = set(used_names)
    if keyword.iskeyword(name) or not {name, *derived_names(name)}.isdisjoint(
        names | RESERVED_IN_PYTHON
    ):
        return False
    return not any(
        name in derived_names(other) or _share_a_derived_name(name, other) for other in names
    )


def free_name(wanted: str, used_names: Iterable[str]) -> str:
    """Return the wanted name; if it is not free, append the first number that makes it free."""
    names = set(used_names)
    return next(name for name in chain([wanted], numbered(wanted)) if is_free(name, names))


def numbered(name: str) -> Iterator[str]:
    """Yield name_2, name_3, and so on, without end."""
    return (f"{name}_{n}" for n in count(2))


def _share_a_derived_name(name: str, other: str) -> bool:
    """Tell whether printers derive some name from both variables."""
    return not derived_names(name).isdisjoint(derived_names(other))
