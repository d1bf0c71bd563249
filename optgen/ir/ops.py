"""Define the ops of the language: for each its arity, category and LaTeX.

`ir/meanings.py` has their meanings on tensors. Each lowering prints ops in its own way; a test
requires an entry for every pair of op and lowering. Reading a spec needs no torch, so nothing here
imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OpCategory = Literal[
    "arithmetic",
    "comparison",
    "logic",
    "function",
    "lookup",
    "reduction",
    "wide reduction",
    "property",
    "matrix",
    "linear algebra",
    "storage",
    "random",
]


@dataclass(frozen=True)
class OpInfo:
    """One op; `latex` is a format string of `{0}`, `{1}`."""

    name: str
    arity: int
    category: OpCategory
    latex: str


def _row_latex(name: str, operand: str = "{0}") -> str:
    return rf"\operatorname{{{{{name}}}}}_{{{{\rightarrow}}}}({operand})"


def _col_latex(name: str, operand: str = "{0}") -> str:
    return rf"\operatorname{{{{{name}}}}}_{{{{\downarrow}}}}({operand})"


def _wide_latex(name: str, scope: str) -> str:
    return rf"\{name}_{{{{\text{{{{{scope}}}}}}}}} {{0}}"


_TABLE = (
    OpInfo("+", 2, "arithmetic", "{0} + {1}"),
    OpInfo("-", 2, "arithmetic", "{0} - {1}"),
    OpInfo("*", 2, "arithmetic", "{0} {1}"),
    OpInfo("/", 2, "arithmetic", r"\frac{{{0}}}{{{1}}}"),
    OpInfo("**", 2, "arithmetic", "{0}^{{{1}}}"),
    OpInfo("%", 2, "arithmetic", r"{0} \bmod {1}"),
    OpInfo("neg", 1, "arithmetic", "-{0}"),
    OpInfo("<", 2, "comparison", "{0} < {1}"),
    OpInfo("<=", 2, "comparison", r"{0} \le {1}"),
    OpInfo(">", 2, "comparison", "{0} > {1}"),
    OpInfo(">=", 2, "comparison", r"{0} \ge {1}"),
    OpInfo("==", 2, "comparison", "{0} = {1}"),
    OpInfo("!=", 2, "comparison", r"{0} \ne {1}"),
    OpInfo("and", 2, "logic", r"{0} \wedge {1}"),
    OpInfo("or", 2, "logic", r"{0} \vee {1}"),
    OpInfo("not", 1, "logic", r"\neg {0}"),
    OpInfo("sqrt", 1, "function", r"\sqrt{{{0}}}"),
    OpInfo("exp", 1, "function", r"e^{{{0}}}"),
    OpInfo("log", 1, "function", r"\log {0}"),
    OpInfo("tanh", 1, "function", r"\tanh({0})"),
    OpInfo("sin", 1, "function", r"\sin({0})"),
    OpInfo("cos", 1, "function", r"\cos({0})"),
    OpInfo(
        "atan2",
        2,
        "function",
        r"\operatorname{{atan2}}({0}, {1})",
    ),
    OpInfo("floor", 1, "function", r"\left\lfloor {0} \right\rfloor"),
    OpInfo("ceil", 1, "function", r"\left\lceil {0} \right\rceil"),
    OpInfo("round", 1, "function", r"\operatorname{{round}}({0})"),
    OpInfo("abs", 1, "function", r"\left|{0}\right|"),
    OpInfo("sign", 1, "function", r"\operatorname{{sign}}({0})"),
    OpInfo("maximum", 2, "function", r"\max({0}, {1})"),
    OpInfo("minimum", 2, "function", r"\min({0}, {1})"),
    OpInfo(
        "where",
        3,
        "function",
        r"({0} \;?\; {1} : {2})",
    ),
    OpInfo("clamp", 3, "function", r"\operatorname{{clamp}}({0}, {1}, {2})"),
    OpInfo("lerp", 3, "function", r"\operatorname{{lerp}}({0}, {1}, {2})"),
    # The last operand is the machine epsilon of the parameter's dtype; the spec reader adds it.
    OpInfo("rounded", 2, "storage", r"\operatorname{{rd}}({0})"),
    OpInfo("rounded_down", 2, "storage", r"\operatorname{{rd}}_{{\downarrow}}({0})"),
    OpInfo("rounded_up", 2, "storage", r"\operatorname{{rd}}_{{\uparrow}}({0})"),
    OpInfo(
        "rounded_at_random",
        3,
        "storage",
        r"\operatorname{{rd}}_{{\updownarrow}}({0}; {1})",
    ),
    # The operands are the seed, the stream, the step count, and the number of the call in the rule.
    # The spec reader adds the last two.
    OpInfo("random", 4, "random", r"U^{{({3})}}_{{{0}, {1}, {2}}}"),
    OpInfo("random16", 4, "random", r"\tilde{{U}}^{{({3})}}_{{{0}, {1}, {2}}}"),
    # A lookup computes no new number: it returns or tests a value that is known already.
    OpInfo("truth", 1, "lookup", "{0}"),
    OpInfo("item", 2, "lookup", "{0}_{{{1}}}"),
    OpInfo("is_none", 1, "lookup", r"{0} = \varnothing"),
    OpInfo("copy", 1, "lookup", "{0}"),
    OpInfo("fresh", 1, "lookup", r"{0} \text{{ is new}}"),
    # Properties of the parameter are known before a step begins.
    OpInfo("factored", 1, "property", r"\dim {0} > 1"),
    OpInfo("tall", 1, "property", r"{0} \text{{ is tall}}"),
    OpInfo("ndim", 1, "property", r"\dim {0}"),
    OpInfo("numel", 1, "property", r"\left|{0}\right|"),
    OpInfo("rows", 1, "property", r"\operatorname{{rows}}({0})"),
    OpInfo("cols", 1, "property", r"\operatorname{{cols}}({0})"),
    OpInfo("machine_eps", 1, "property", r"\varepsilon_{{\text{{mach}}}}({0})"),
    # The result of a reduction by row has size 1 in the last axis, by column in the last but one.
    OpInfo("row_sum", 1, "reduction", _row_latex("sum")),
    OpInfo("col_sum", 1, "reduction", _col_latex("sum")),
    OpInfo("row_mean", 1, "reduction", _row_latex("mean")),
    OpInfo("col_mean", 1, "reduction", _col_latex("mean")),
    OpInfo("row_norm", 1, "reduction", _row_latex("norm")),
    OpInfo("col_norm", 1, "reduction", _col_latex("norm")),
    OpInfo("row_rms", 1, "reduction", _row_latex("rms")),
    OpInfo("col_rms", 1, "reduction", _col_latex("rms")),
    OpInfo("row_max_abs", 1, "reduction", _row_latex("max", r"\left|{0}\right|")),
    OpInfo("col_max_abs", 1, "reduction", _col_latex("max", r"\left|{0}\right|")),
    OpInfo("sum", 1, "reduction", r"\operatorname{{sum}}({0})"),
    OpInfo("mean", 1, "reduction", r"\operatorname{{mean}}({0})"),
    OpInfo("norm", 1, "reduction", r"\left\|{0}\right\|_2"),
    OpInfo("rms", 1, "reduction", r"\operatorname{{rms}}({0})"),
    OpInfo("max_abs", 1, "reduction", r"\left\|{0}\right\|_\infty"),
    # A wide reduction takes one number per parameter of a param group, or of all groups. It is
    # always the whole value of a statement.
    OpInfo("group_sum", 1, "wide reduction", _wide_latex("sum", "group")),
    OpInfo("group_max", 1, "wide reduction", _wide_latex("max", "group")),
    OpInfo("all_sum", 1, "wide reduction", _wide_latex("sum", "all")),
    OpInfo("all_max", 1, "wide reduction", _wide_latex("max", "all")),
    # A matrix op takes whole matrices: the last two axes of a tensor, batched over the others.
    OpInfo(
        "orthogonalize",
        4,
        "matrix",
        r"\operatorname{{NewtonSchulz}}_{{{2}}}({0};\, {1}, {3})",
    ),
    # An op of linear algebra takes whole matrices too. A rule that has one is not cut into sweeps.
    OpInfo("@", 2, "linear algebra", r"{0} \, {1}"),
    OpInfo("transpose", 1, "linear algebra", r"{0}^{{\top}}"),
    OpInfo("identity", 1, "linear algebra", "I_{{{0}}}"),
    OpInfo("diag", 1, "linear algebra", r"\operatorname{{diag}}({0})"),
    OpInfo("trace", 1, "linear algebra", r"\operatorname{{tr}}({0})"),
    OpInfo("qr", 1, "linear algebra", r"\operatorname{{qr}}({0})"),
    OpInfo(
        "eigenvectors",
        1,
        "linear algebra",
        r"\operatorname{{eigenvectors}}({0})",
    ),
    OpInfo(
        "eigenvalues",
        1,
        "linear algebra",
        r"\operatorname{{eigenvalues}}({0})",
    ),
    OpInfo(
        "descending",
        1,
        "linear algebra",
        r"\operatorname{{descending}}({0})",
    ),
    OpInfo(
        "inverse_root",
        3,
        "linear algebra",
        r"({0} + {2} I)^{{-1 / {1}}}",
    ),
    # The second operand is the rank of the parameter's matrices; the spec reader computes it.
    OpInfo(
        "singular_vectors",
        2,
        "linear algebra",
        r"\operatorname{{singular}}_{{{1}}}({0})",
    ),
    # The operands after the first are those of `random`.
    OpInfo("gaussian", 5, "linear algebra", r"N^{{({4})}}_{{{1}, {2}, {3}}}({0})"),
)

OPS: dict[str, OpInfo] = {op.name: op for op in _TABLE}
FUNCTIONS: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "function")
"""Functions that work element by element."""

PROPERTIES: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "property")
REDUCTIONS: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "reduction")
AXIS_REDUCTIONS: tuple[str, ...] = tuple(op for op in REDUCTIONS if op.startswith(("row_", "col_")))
"""Reductions to one number per row or per column."""

MAXIMA: frozenset[str] = frozenset(("max_abs", "row_max_abs", "col_max_abs"))
"""Reductions that take the largest magnitude. All other reductions add up."""
WIDE_OPS: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "wide reduction")
"""Reductions of one number per parameter: over a param group, or over all groups."""

RANDOM_OPS: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "random")
"""Ops that draw a random number for each position in the parameter."""

MATRIX_OPS: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "matrix")
LINEAR_ALGEBRA: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "linear algebra")
DRAWING_OPS: tuple[str, ...] = (*RANDOM_OPS, "gaussian")
"""Ops that draw random numbers: from a seed, a stream, the step count and the call's number."""

STORAGE_OPS: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "storage")
"""Functions of elements whose meaning depends on the dtype that the parameter is stored in."""

ROW_WISE_OPS: frozenset[str] = frozenset(
    ("row_sum", "row_mean", "row_norm", "row_rms", "row_max_abs", "cols", "machine_eps")
)
"""Ops whose result for a row depends on that row only."""
SHADOWABLE_FUNCTIONS: frozenset[str] = frozenset(
    (
        *("tanh", "sin", "cos", "atan2", "floor", "ceil", "round"),
        *(*LINEAR_ALGEBRA, *STORAGE_OPS, *RANDOM_OPS),
    )
)
"""Functions whose names a spec may use for its own values if it does not call them.

Generated code calls them only if the spec does.
"""

CALLABLE_OPS: tuple[str, ...] = (
    *FUNCTIONS,
    *STORAGE_OPS,
    *RANDOM_OPS,
    "fresh",
    *REDUCTIONS,
    *MATRIX_OPS,
    *(op for op in LINEAR_ALGEBRA if op.isidentifier()),
    *PROPERTIES,
)
"""Functions that a spec may call."""

CONDITION_OPERANDS = {"where": 1, "and": 2, "or": 2, "not": 1}
"""For each op with conditions as its first operands, the number of these operands."""

ELEMENTWISE_OPS: tuple[str, ...] = tuple(
    op
    for op in OPS
    if op not in (*PROPERTIES, *REDUCTIONS, *WIDE_OPS, *MATRIX_OPS, *LINEAR_ALGEBRA, *RANDOM_OPS)
)
"""Ops that work element by element. Every lowering prints them inside a sweep."""

PRECEDENCE = {
    "or": 1,
    "and": 2,
    "not": 3,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "==": 4,
    "!=": 4,
    "+": 5,
    "-": 5,
    "%": 6,
    "*": 7,
    "/": 7,
    "@": 7,
    "neg": 8,
    "**": 9,
}
"""Precedence of operators, as in Python; names and calls bind tightest, at `ATOM`.

In Python `%` binds as tightly as `*`. Here it binds less tightly, so that it is always printed in
parentheses inside a product or a negation.
"""

ATOM = 10

NUM_SEEDS = 2**24
"""Seeds and streams are whole numbers below 2**24, which a float32 holds exactly."""
