"""Define the ops of the language: for each its arity, category and LaTeX, and the words for them.

`ir/meanings.py` has their meanings on tensors. Each lowering prints ops in its own way; a test
requires an entry for every pair of op and lowering. Reading a spec needs no torch, so nothing here
imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import cleandoc
from itertools import starmap
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
    """One op; `latex` is a format string of `{0}`, `{1}`.

    A call may leave out the last `options` operands, which `arity` does not count.
    """

    name: str
    arity: int
    category: OpCategory
    latex: str
    options: int = 0


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
    OpInfo("atan2", 2, "function", r"\operatorname{{atan2}}({0}, {1})"),
    OpInfo("floor", 1, "function", r"\left\lfloor {0} \right\rfloor"),
    OpInfo("ceil", 1, "function", r"\left\lceil {0} \right\rceil"),
    OpInfo("round", 1, "function", r"\operatorname{{round}}({0})"),
    OpInfo("abs", 1, "function", r"\left|{0}\right|"),
    OpInfo("sign", 1, "function", r"\operatorname{{sign}}({0})"),
    OpInfo("maximum", 2, "function", r"\max({0}, {1})"),
    OpInfo("minimum", 2, "function", r"\min({0}, {1})"),
    OpInfo("where", 3, "function", r"({0} \;?\; {1} : {2})"),
    OpInfo("clamp", 3, "function", r"\operatorname{{clamp}}({0}, {1}, {2})"),
    OpInfo("lerp", 3, "function", r"\operatorname{{lerp}}({0}, {1}, {2})"),
    # The last operand is the machine epsilon of the parameter's dtype; the spec reader adds it.
    OpInfo("rounded", 2, "storage", r"\operatorname{{rd}}({0})"),
    OpInfo("rounded_down", 2, "storage", r"\operatorname{{rd}}_{{\downarrow}}({0})"),
    OpInfo("rounded_up", 2, "storage", r"\operatorname{{rd}}_{{\uparrow}}({0})"),
    OpInfo("rounded_at_random", 3, "storage", r"\operatorname{{rd}}_{{\updownarrow}}({0}; {1})"),
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
    # A limit of a size: `rows(p) <= limit`, where a state exists under this condition.
    OpInfo("within", 2, "lookup", r"{0} \le {1}"),
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
    # The options are what x is divided by, and the dtype of the iterations: a name, or the machine
    # epsilon of the parameter's.
    OpInfo(
        "orthogonalize", 4, "matrix", r"\operatorname{{NewtonSchulz}}_{{{2}}}({0};\, {1}, {3})", 2
    ),
    # An op of linear algebra takes whole matrices too. A rule that has one is not cut into sweeps.
    OpInfo("@", 2, "linear algebra", r"{0} \, {1}"),
    OpInfo("transpose", 1, "linear algebra", r"{0}^{{\top}}"),
    OpInfo("identity", 1, "linear algebra", "I_{{{0}}}"),
    OpInfo("row_ones", 1, "linear algebra", r"\mathbf{{1}}_{{\operatorname{{rows}}({0})}}"),
    OpInfo(
        "col_ones", 1, "linear algebra", r"\mathbf{{1}}_{{\operatorname{{cols}}({0})}}^{{\top}}"
    ),
    OpInfo("lower", 1, "linear algebra", r"\operatorname{{lower}}({0})"),
    OpInfo("upper", 1, "linear algebra", r"\operatorname{{upper}}({0})"),
    OpInfo("diag", 1, "linear algebra", r"\operatorname{{diag}}({0})"),
    OpInfo("trace", 1, "linear algebra", r"\operatorname{{tr}}({0})"),
    OpInfo("qr", 1, "linear algebra", r"\operatorname{{qr}}({0})"),
    OpInfo("cholesky", 1, "linear algebra", r"\operatorname{{chol}}({0})"),
    OpInfo("solve_triangular", 2, "linear algebra", r"{0}^{{-1}} \, {1}"),
    OpInfo("solve_transposed", 2, "linear algebra", r"{0}^{{-\top}} \, {1}"),
    OpInfo("eigenvectors", 1, "linear algebra", r"\operatorname{{eigenvectors}}({0})"),
    OpInfo("eigenvalues", 1, "linear algebra", r"\operatorname{{eigenvalues}}({0})"),
    OpInfo("descending", 1, "linear algebra", r"\operatorname{{descending}}({0})"),
    OpInfo("inverse_root", 3, "linear algebra", r"({0} + {2} I)^{{-1 / {1}}}"),
    # The second operand is the rank of the parameter's matrices; the spec reader computes it.
    OpInfo("singular_vectors", 2, "linear algebra", r"\operatorname{{singular}}_{{{1}}}({0})"),
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
WHOLE_REDUCTIONS: tuple[str, ...] = tuple(op for op in REDUCTIONS if op not in AXIS_REDUCTIONS)
"""Reductions to one number per parameter. `over=` asks for each matrix, or several parameters."""

MAXIMA: frozenset[str] = frozenset(("max_abs", "row_max_abs", "col_max_abs"))
"""Reductions that take the largest magnitude. All other reductions add up."""
WIDE_OPS: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "wide reduction")
"""Reductions of one number per parameter: over a param group, or over all groups."""

RANDOM_OPS: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "random")
"""Ops that draw a random number for each position in the parameter."""

MATRIX_OPS: tuple[str, ...] = tuple(op.name for op in _TABLE if op.category == "matrix")
MATRIX_OP_OPTIONS: dict[str, tuple[str, ...]] = {
    "divisor": ("norm", "spectral", "none"),
    "dtype": ("bfloat16", "float16", "float32", "parameter"),
}
"""The options of a matrix op, in the order of the operands, with their values; defaults first."""

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

_WORDS = {
    "sqrt(x)": "Return the square root; NaN below zero.",
    "exp(x)": "Return e to the power of x.",
    "log(x)": "Return the natural logarithm; -inf at zero, NaN below.",
    "tanh(x)": "Return the hyperbolic tangent.",
    "sin(x)": "Return the sine of an angle in radians.",
    "cos(x)": "Return the cosine of an angle in radians.",
    "atan2(y, x)": "Return the angle of the point (x, y) in radians, from -pi to pi.",
    "floor(x)": "Return the largest whole number that is not above x.",
    "ceil(x)": "Return the smallest whole number that is not below x.",
    "round(x)": "Return the nearest whole number, ties to even.",
    "abs(x)": "Return the absolute value.",
    "sign(x)": "Return the sign: -1, 0 or 1; 0 for NaN.",
    "maximum(a, b)": "Return the larger of two values, element by element; NaN where either is "
    "NaN.",
    "minimum(a, b)": "Return the smaller of two values, element by element; NaN where either is "
    "NaN.",
    "where(condition, if_true, if_false)": "Return if_true where the condition holds, if_false "
    "elsewhere, element by element.",
    "clamp(x, low, high)": "Return x limited to the range from low to high.",
    "lerp(start, end, weight)": "Return start + weight * (end - start).",
    "rounded(x)": "Return x as the parameter will store it: rounded to its dtype, ties to even.",
    "rounded_down(x)": "Return the largest number of the parameter's dtype that is not above x.",
    "rounded_up(x)": "Return the smallest number of the parameter's dtype that is not below x.",
    "rounded_at_random(x, chance)": """
    Return x rounded away from zero where `chance` is small enough, else towards zero.

    The mean of the results is x if `chance` is uniform in [0, 1): pass random16(seed, stream).
    """,
    "random(seed, stream)": """
    Return a random number in [0, 1) for each element, from seed, stream, step and position.

    Args:
        seed, stream: whole numbers, for example a hyperparameter and a state that begins as the
            parameter's number: state("stream", shape="scalar", init="index").
    """,
    "random16(seed, stream)": "Return a random number in [0, 1) of 16 bits, for rounding. It "
    "costs less than `random`.",
    "fresh(state)": "Tell whether this step created a state: it is the first with a gradient "
    "for the parameter.",
    "row_sum(x)": "Return the sum along the last axis, which keeps size 1: one number per row.",
    "col_sum(x)": "Return the sum along the last axis but one, which keeps size 1: one number "
    "per column.",
    "row_mean(x)": "Return the mean along the last axis, which keeps size 1: one number per row.",
    "col_mean(x)": "Return the mean along the last axis but one, which keeps size 1: one "
    "number per column.",
    "row_norm(x)": "Return the Euclidean norm along the last axis, which keeps size 1: one "
    "number per row.",
    "col_norm(x)": "Return the Euclidean norm along the last axis but one: one number per column.",
    "row_rms(x)": "Return the root mean square along the last axis, which keeps size 1: one "
    "number per row.",
    "col_rms(x)": "Return the root mean square along the last axis but one: one number per column.",
    "row_max_abs(x)": "Return the largest absolute value along the last axis: one number per row.",
    "col_max_abs(x)": "Return the largest absolute value along the last axis but one: one "
    "number per column.",
    "sum(x)": "Return the sum of all elements: one number per parameter.",
    "mean(x)": "Return the mean of all elements: one number per parameter.",
    "norm(x)": "Return the Euclidean norm of all elements: sqrt(sum(x**2)).",
    "rms(x)": "Return the root mean square of all elements: sqrt(mean(x**2)).",
    "max_abs(x)": "Return the largest absolute value of all elements; NaN if any element is NaN.",
    "orthogonalize(x, coefficients, steps, eps)": """
    Return x with the singular values of each matrix near 1, by Newton-Schulz iterations.

    Args:
        x: a tensor of matrices, in its last two axes.
        coefficients: a hyperparameter of three numbers a, b, c. An iteration maps y to
            a y + b y y' y + c y y' y y' y, starting from y = x / norm(x). A longer tuple has three
            numbers for each iteration in turn, and all later iterations use the last three.
        steps: the number of iterations.
        eps: the smallest norm to divide by. A matrix with a smaller norm gets small singular
            values; a matrix of zeros stays so, whatever eps is. Leave it out with divisor="none".
        divisor: "norm", or "spectral" for sqrt(norm(x @ transpose(x))), which is nearer to the
            largest singular value and never below it; "none" begins at x itself.
        dtype: of the iterations: "bfloat16", "float16", "float32" or "parameter".
    """,
    "transpose(x)": "Return x with rows and columns swapped.",
    "identity(x)": "Return the identity matrix in the shape of a square matrix x.",
    "row_ones(x)": "Return ones in the shape of one number per row of x.",
    "col_ones(x)": "Return ones in the shape of one number per column of x.",
    "lower(x)": "Return the lower triangle of a matrix with its diagonal; other elements are 0.",
    "upper(x)": "Return the upper triangle of a matrix with its diagonal; other elements are 0.",
    "diag(x)": "Return the diagonal of a square matrix: one number per row of x.",
    "trace(x)": "Return the sum of the diagonal of a square matrix: one number per matrix.",
    "qr(x)": "Return the orthonormal factor of the QR decomposition of a square or a thin matrix.",
    "cholesky(x)": """
    Return the lower triangle L with positive diagonal for which L @ transpose(L) is x.

    NaN for a matrix that is not positive definite.

    Args:
        x: a symmetric matrix, of which the lower triangle is read.
    """,
    "solve_triangular(l, x)": """
    Return y for which l @ y is x.

    NaN for a matrix with a zero on its diagonal.

    Args:
        l: a square matrix, of which the lower triangle is read.
        x: a matrix with as many rows as l.
    """,
    "solve_transposed(l, x)": """
    Return y for which transpose(l) @ y is x.

    NaN for a matrix with a zero on its diagonal.

    Args:
        l: a square matrix, of which the lower triangle is read.
        x: a matrix with as many rows as l.
    """,
    "eigenvectors(x)": "Return the eigenvectors of a symmetric matrix as columns, by ascending "
    "eigenvalues.",
    "eigenvalues(x)": "Return the eigenvalues of a symmetric matrix, ascending: one number per "
    "row of x.",
    "descending(x)": """
    Return the permutation matrix P for which P @ x is in descending order.

    Args:
        x: one number per row of a square matrix, such as diag(y).
    """,
    "inverse_root(x, n, eps)": """
    Return (x + eps I)^(-1/n) of a symmetric matrix; negative eigenvalues of x become 0.

    Eigenvalues that rounding hides beside the largest one count as 8 machine epsilons of it. So
    the root of a singular matrix is finite. The root of zeros is 0 if eps is 0.

    Args:
        x: a symmetric matrix.
        n: the root: 1 for the inverse, 2 for the inverse square root, 4 for Shampoo's.
        eps: a number that is added to every eigenvalue.
    """,
    "singular_vectors(x, rank)": """
    Return the left singular vectors of the largest singular values, as columns.

    Args:
        x: a matrix.
        rank: the hyperparameter of this name. The number of vectors is at most the parameter's
            number of rows, and at most its number of columns.
    """,
    "gaussian(x, seed, stream)": """
    Return numbers of the standard normal distribution in the shape of a matrix.

    Args:
        x: a matrix, such as a state. Only its shape matters.
        seed: a whole number, usually a hyperparameter.
        stream: a whole number, usually a scalar state with init="index", so that parameters draw
            different numbers.
    """,
    "factored(p)": "Tell whether the parameter has rows and columns: at least two axes.",
    "tall(p)": "Tell whether the parameter has rows and columns, and no fewer rows than columns.",
    "ndim(p)": "Return the number of axes of the parameter.",
    "numel(p)": "Return the number of elements of the parameter.",
    "rows(p)": "Return the number of rows of each matrix: the size of the last axis but one.",
    "cols(p)": "Return the number of columns of each matrix: the size of the last axis.",
    "machine_eps(p)": "Return the distance from 1 to the next number in the parameter's dtype: "
    "its finfo.eps.",
}
"""Functions that a spec may call, as they are called, with their docstrings.

In a hint that lists functions, they have this order.
"""

_OVER = """

Args:
    x: a value of every element.
    over: "matrix" for one number per matrix of a parameter; "group" for all elements of all
        parameters in the group, or "all" for those of all groups. The last two leave out
        parameters without a gradient in this step.
"""


@dataclass(frozen=True)
class Word:
    """A function of the language: the arguments that an author writes, and its docstring."""

    name: str
    arguments: tuple[str, ...]
    doc: str

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.arguments)})"

    @property
    def keywords(self) -> dict[str, str | None]:
        """The keyword arguments, with their defaults."""
        if self.name in MATRIX_OPS:
            return {name: values[0] for name, values in MATRIX_OP_OPTIONS.items()}
        return {"over": None} if self.name in WHOLE_REDUCTIONS else {}

    @property
    def optional_arguments(self) -> frozenset[str]:
        """The arguments that an author may leave out: an `eps` with divisor="none"."""
        return frozenset({"eps"} if self.name in MATRIX_OPS else ())


def _word(call: str, doc: str) -> Word:
    name, _, arguments = call.removesuffix(")").partition("(")
    about = cleandoc(doc) + (_OVER if name in WHOLE_REDUCTIONS else "")
    return Word(name, tuple(arguments.split(", ")), about.strip())


WORDS: dict[str, Word] = {word.name: word for word in starmap(_word, _WORDS.items())}
CALLABLE_OPS: tuple[str, ...] = tuple(WORDS)
"""Functions that a spec may call."""

CONDITION_OPERANDS = {"where": 1, "and": 2, "or": 2, "not": 1}
"""For each op with conditions as its first operands, the number of these operands."""

ELEMENTWISE_OPS: tuple[str, ...] = tuple(
    op
    for op in OPS
    if op
    not in (
        *PROPERTIES,
        "within",
        *REDUCTIONS,
        *WIDE_OPS,
        *MATRIX_OPS,
        *LINEAR_ALGEBRA,
        *RANDOM_OPS,
    )
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
