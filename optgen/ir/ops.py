"""Define the ops of the language: for each its arity, category, meaning on tensors, and LaTeX.

A meaning is computed by torch. So it holds for 0-dim tensors (scalars) and for tensors of any
shape, with torch's NaN, signed zero and infinity. Roots, and functions of scalars, have bits that
do not depend on the CPU, as torch's have. Each lowering prints ops in its own way; a test requires
an entry for every pair of op and lowering.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from optgen.ir import linear_algebra
from optgen.ir.random_numbers import gaussian, random, random16
from optgen.ir.storage_rounding import rounded, rounded_at_random, rounded_down, rounded_up

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
    """One op: `meaning` is a function of tensors; `latex` is a format string of `{0}`, `{1}`."""

    name: str
    arity: int
    category: OpCategory
    meaning: Callable[..., Any]
    latex: str


def _sqrt(x: Any) -> Any:
    """Return the square root, correctly rounded; NaN below zero.

    On Intel CPUs `x.sqrt()` calls MKL, whose last bit is wrong for 0.7 % of numbers. The complex
    root of a positive number calls the C library, whose root is IEEE's.
    """
    root = x.sqrt()
    return x.to(torch.complex128).sqrt().real.to(x.dtype).where(x > 0, root) if x.is_cpu else root


def _of_scalars(on_floats: Callable[..., float], on_tensors: Callable[..., Any]) -> Any:
    """Return a function of tensors that computes scalars as Python does: by the C library.

    For scalars torch takes the functions of its vectors, whose last bits depend on the CPU.
    """

    def meaning(*operands: Any) -> Any:
        if all(operand.ndim == 0 and operand.is_floating_point() for operand in operands):
            try:
                number = on_floats(*(operand.item() for operand in operands))
                return torch.tensor(number, dtype=torch.float64).to(operands[0].dtype)
            except (ValueError, OverflowError):
                pass  # Python raises an error where IEEE 754 and torch have NaN or infinity
        return on_tensors(*operands)

    return meaning


_pow = _of_scalars(math.pow, lambda a, b: a ** (b if b.ndim else b.item()))


def _power(a: Any, b: Any) -> Any:
    """Return a power. As in torch, an exponent of 0.5 means the root, and -0.5 its inverse."""
    if b.ndim == 0 and abs(b.item()) == 0.5:
        root = _sqrt(a)
        return root if b > 0 else 1 / root
    return _pow(a, b)


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    return start + weight * (end - start)


def _clamp(x: Any, low: Any, high: Any) -> Any:
    return x.clamp(low, high)


def _max_abs(x: Any) -> Any:
    """Return the largest magnitude; 0 for an empty tensor, NaN if any element is NaN."""
    return x.abs().amax() if x.numel() else x.new_zeros(())


def _row_max_abs(x: Any) -> Any:
    """Return the largest magnitude of every row; 0 for a row without elements."""
    return x.abs().amax(-1, keepdim=True) if x.size(-1) else x.sum(-1, keepdim=True)


def _col_max_abs(x: Any) -> Any:
    """Return the largest magnitude of every column; 0 for a column without elements."""
    return x.abs().amax(-2, keepdim=True) if x.size(-2) else x.sum(-2, keepdim=True)


def _row_latex(name: str, operand: str = "{0}") -> str:
    return rf"\operatorname{{{{{name}}}}}_{{{{\rightarrow}}}}({operand})"


def _col_latex(name: str, operand: str = "{0}") -> str:
    return rf"\operatorname{{{{{name}}}}}_{{{{\downarrow}}}}({operand})"


def _sum_of_sorted(*numbers: Any) -> Any:
    """Return the sum of numbers. Sorting makes its bits independent of their order."""
    return torch.stack(numbers).sort().values.sum()


def _largest(*numbers: Any) -> Any:
    return torch.stack(numbers).amax()


def _wide_latex(name: str, scope: str) -> str:
    return rf"\{name}_{{{{\text{{{{{scope}}}}}}}}} {{0}}"


_TABLE = (
    OpInfo("+", 2, "arithmetic", lambda a, b: a + b, "{0} + {1}"),
    OpInfo("-", 2, "arithmetic", lambda a, b: a - b, "{0} - {1}"),
    OpInfo("*", 2, "arithmetic", lambda a, b: a * b, "{0} {1}"),
    OpInfo("/", 2, "arithmetic", lambda a, b: a / b, r"\frac{{{0}}}{{{1}}}"),
    OpInfo("**", 2, "arithmetic", _power, "{0}^{{{1}}}"),
    OpInfo("%", 2, "arithmetic", lambda a, b: a % b, r"{0} \bmod {1}"),
    OpInfo("neg", 1, "arithmetic", lambda a: -a, "-{0}"),
    OpInfo("<", 2, "comparison", lambda a, b: a < b, "{0} < {1}"),
    OpInfo("<=", 2, "comparison", lambda a, b: a <= b, r"{0} \le {1}"),
    OpInfo(">", 2, "comparison", lambda a, b: a > b, "{0} > {1}"),
    OpInfo(">=", 2, "comparison", lambda a, b: a >= b, r"{0} \ge {1}"),
    OpInfo("==", 2, "comparison", lambda a, b: a == b, "{0} = {1}"),
    OpInfo("!=", 2, "comparison", lambda a, b: a != b, r"{0} \ne {1}"),
    OpInfo("and", 2, "logic", lambda a, b: a & b, r"{0} \wedge {1}"),
    OpInfo("or", 2, "logic", lambda a, b: a | b, r"{0} \vee {1}"),
    OpInfo("not", 1, "logic", lambda a: ~a, r"\neg {0}"),
    OpInfo("sqrt", 1, "function", _sqrt, r"\sqrt{{{0}}}"),
    OpInfo("exp", 1, "function", _of_scalars(math.exp, torch.exp), r"e^{{{0}}}"),
    OpInfo("log", 1, "function", _of_scalars(math.log, torch.log), r"\log {0}"),
    OpInfo("tanh", 1, "function", _of_scalars(math.tanh, torch.tanh), r"\tanh({0})"),
    OpInfo("sin", 1, "function", _of_scalars(math.sin, torch.sin), r"\sin({0})"),
    OpInfo("cos", 1, "function", _of_scalars(math.cos, torch.cos), r"\cos({0})"),
    OpInfo(
        "atan2",
        2,
        "function",
        _of_scalars(math.atan2, torch.atan2),
        r"\operatorname{{atan2}}({0}, {1})",
    ),
    OpInfo("floor", 1, "function", lambda x: x.floor(), r"\left\lfloor {0} \right\rfloor"),
    OpInfo("ceil", 1, "function", lambda x: x.ceil(), r"\left\lceil {0} \right\rceil"),
    OpInfo("round", 1, "function", lambda x: x.round(), r"\operatorname{{round}}({0})"),
    OpInfo("abs", 1, "function", lambda x: x.abs(), r"\left|{0}\right|"),
    OpInfo("sign", 1, "function", lambda x: x.sign(), r"\operatorname{{sign}}({0})"),
    OpInfo("maximum", 2, "function", lambda a, b: a.maximum(b), r"\max({0}, {1})"),
    OpInfo("minimum", 2, "function", lambda a, b: a.minimum(b), r"\min({0}, {1})"),
    OpInfo(
        "where",
        3,
        "function",
        lambda condition, a, b: a.where(condition, b),
        r"({0} \;?\; {1} : {2})",
    ),
    OpInfo("clamp", 3, "function", _clamp, r"\operatorname{{clamp}}({0}, {1}, {2})"),
    OpInfo("lerp", 3, "function", _lerp, r"\operatorname{{lerp}}({0}, {1}, {2})"),
    # The last operand is the machine epsilon of the parameter's dtype; the spec reader adds it.
    OpInfo("rounded", 2, "storage", rounded, r"\operatorname{{rd}}({0})"),
    OpInfo("rounded_down", 2, "storage", rounded_down, r"\operatorname{{rd}}_{{\downarrow}}({0})"),
    OpInfo("rounded_up", 2, "storage", rounded_up, r"\operatorname{{rd}}_{{\uparrow}}({0})"),
    OpInfo(
        "rounded_at_random",
        3,
        "storage",
        rounded_at_random,
        r"\operatorname{{rd}}_{{\updownarrow}}({0}; {1})",
    ),
    # The operands are the seed, the stream, the step count, and the number of the call in the rule.
    # The spec reader adds the last two. The first argument of a meaning is the elements' positions.
    OpInfo("random", 4, "random", random, r"U^{{({3})}}_{{{0}, {1}, {2}}}"),
    OpInfo("random16", 4, "random", random16, r"\tilde{{U}}^{{({3})}}_{{{0}, {1}, {2}}}"),
    # A lookup computes no new number: it returns or tests a value that is known already.
    OpInfo("truth", 1, "lookup", lambda x: x != 0, "{0}"),
    OpInfo("item", 2, "lookup", lambda values, i: values[i], "{0}_{{{1}}}"),
    OpInfo("is_none", 1, "lookup", lambda x: x is None, r"{0} = \varnothing"),
    OpInfo("copy", 1, "lookup", lambda x: x.clone(), "{0}"),
    OpInfo("fresh", 1, "lookup", lambda x: x, r"{0} \text{{ is new}}"),
    # Properties of the parameter are known before a step begins. As for `fresh`, the evaluator
    # receives their values, and these meanings never run.
    OpInfo("factored", 1, "property", lambda x: x, r"\dim {0} > 1"),
    OpInfo("tall", 1, "property", lambda x: x, r"{0} \text{{ is tall}}"),
    OpInfo("ndim", 1, "property", lambda x: x, r"\dim {0}"),
    OpInfo("numel", 1, "property", lambda x: x, r"\left|{0}\right|"),
    OpInfo("rows", 1, "property", lambda x: x, r"\operatorname{{rows}}({0})"),
    OpInfo("cols", 1, "property", lambda x: x, r"\operatorname{{cols}}({0})"),
    OpInfo("machine_eps", 1, "property", lambda x: x, r"\varepsilon_{{\text{{mach}}}}({0})"),
    # The result of a reduction by row has size 1 in the last axis, by column in the last but one.
    OpInfo("row_sum", 1, "reduction", lambda x: x.sum(-1, keepdim=True), _row_latex("sum")),
    OpInfo("col_sum", 1, "reduction", lambda x: x.sum(-2, keepdim=True), _col_latex("sum")),
    OpInfo("row_mean", 1, "reduction", lambda x: x.mean(-1, keepdim=True), _row_latex("mean")),
    OpInfo("col_mean", 1, "reduction", lambda x: x.mean(-2, keepdim=True), _col_latex("mean")),
    OpInfo("row_norm", 1, "reduction", lambda x: _sqrt((x * x).sum(-1, True)), _row_latex("norm")),
    OpInfo("col_norm", 1, "reduction", lambda x: _sqrt((x * x).sum(-2, True)), _col_latex("norm")),
    OpInfo("row_rms", 1, "reduction", lambda x: _sqrt((x * x).mean(-1, True)), _row_latex("rms")),
    OpInfo("col_rms", 1, "reduction", lambda x: _sqrt((x * x).mean(-2, True)), _col_latex("rms")),
    OpInfo("row_max_abs", 1, "reduction", _row_max_abs, _row_latex("max", r"\left|{0}\right|")),
    OpInfo("col_max_abs", 1, "reduction", _col_max_abs, _col_latex("max", r"\left|{0}\right|")),
    OpInfo("sum", 1, "reduction", lambda x: x.sum(), r"\operatorname{{sum}}({0})"),
    OpInfo("mean", 1, "reduction", lambda x: x.mean(), r"\operatorname{{mean}}({0})"),
    OpInfo("norm", 1, "reduction", lambda x: _sqrt((x * x).sum()), r"\left\|{0}\right\|_2"),
    OpInfo("rms", 1, "reduction", lambda x: _sqrt((x * x).mean()), r"\operatorname{{rms}}({0})"),
    OpInfo("max_abs", 1, "reduction", _max_abs, r"\left\|{0}\right\|_\infty"),
    # A wide reduction takes one number per parameter of a param group, or of all groups. Its
    # meaning takes the numbers of all these parameters. A wide reduction is always the whole value
    # of a statement.
    OpInfo("group_sum", 1, "wide reduction", _sum_of_sorted, _wide_latex("sum", "group")),
    OpInfo("group_max", 1, "wide reduction", _largest, _wide_latex("max", "group")),
    OpInfo("all_sum", 1, "wide reduction", _sum_of_sorted, _wide_latex("sum", "all")),
    OpInfo("all_max", 1, "wide reduction", _largest, _wide_latex("max", "all")),
    # A matrix op takes whole matrices: the last two axes of a tensor, batched over the others.
    OpInfo(
        "orthogonalize",
        4,
        "matrix",
        linear_algebra.orthogonalize,
        r"\operatorname{{NewtonSchulz}}_{{{2}}}({0};\, {1}, {3})",
    ),
    # An op of linear algebra takes whole matrices too. A rule that has one is not cut into sweeps.
    OpInfo("@", 2, "linear algebra", lambda a, b: a @ b, r"{0} \, {1}"),
    OpInfo("transpose", 1, "linear algebra", lambda x: x.mT, r"{0}^{{\top}}"),
    OpInfo("identity", 1, "linear algebra", linear_algebra.identity, "I_{{{0}}}"),
    OpInfo("diag", 1, "linear algebra", linear_algebra.diag, r"\operatorname{{diag}}({0})"),
    OpInfo("trace", 1, "linear algebra", linear_algebra.trace, r"\operatorname{{tr}}({0})"),
    OpInfo("qr", 1, "linear algebra", linear_algebra.qr, r"\operatorname{{qr}}({0})"),
    OpInfo(
        "eigenvectors",
        1,
        "linear algebra",
        linear_algebra.eigenvectors,
        r"\operatorname{{eigenvectors}}({0})",
    ),
    OpInfo(
        "eigenvalues",
        1,
        "linear algebra",
        linear_algebra.eigenvalues,
        r"\operatorname{{eigenvalues}}({0})",
    ),
    OpInfo(
        "descending",
        1,
        "linear algebra",
        linear_algebra.descending,
        r"\operatorname{{descending}}({0})",
    ),
    OpInfo(
        "inverse_root",
        3,
        "linear algebra",
        linear_algebra.inverse_root,
        r"({0} + {2} I)^{{-1 / {1}}}",
    ),
    # The second operand is the rank of the parameter's matrices; the spec reader computes it.
    OpInfo(
        "singular_vectors",
        2,
        "linear algebra",
        linear_algebra.singular_vectors,
        r"\operatorname{{singular}}_{{{1}}}({0})",
    ),
    # The operands after the first are those of `random`.
    OpInfo("gaussian", 5, "linear algebra", gaussian, r"N^{{({4})}}_{{{1}, {2}, {3}}}({0})"),
)

OPS: dict[str, OpInfo] = {op.name: op for op in _TABLE}
FUNCTIONS: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "function")
"""Functions that work element by element."""

PROPERTIES: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "property")
FACTS: tuple[str, ...] = ("factored", "tall")
"""Shape predicates: `when=` may name them, and plans are specialized for their values."""
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
