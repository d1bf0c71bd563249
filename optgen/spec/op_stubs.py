"""Define the functions of the spec language, for import only. A call raises a TypeError."""

from __future__ import annotations

from typing import Any, NoReturn


def _refuse(name: str) -> NoReturn:
    raise TypeError(f"{name}() is a function of the spec language, which is read and never run")


def require(condition: Any, message: str) -> None:
    """Make the constructor raise a ValueError if a condition does not hold.

    Args:
        condition: comparisons of hyperparameters, joined by and, or, not; or a condition on the
            parameter, such as `ndim(p) == 2`.
        message: the message of the ValueError. A hyperparameter's name in braces stands for its
            value, and `{shape}` for the parameter's shape.
    """
    _refuse("require")


def fresh(state: Any) -> Any:
    """Tell whether this step created a state: it is the first with a gradient for the parameter."""
    _refuse("fresh")


def sqrt(x: Any) -> Any:
    """Return the square root; NaN below zero."""
    _refuse("sqrt")


def exp(x: Any) -> Any:
    """Return e to the power of x."""
    _refuse("exp")


def log(x: Any) -> Any:
    """Return the natural logarithm; -inf at zero, NaN below."""
    _refuse("log")


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent."""
    _refuse("tanh")


def sin(x: Any) -> Any:
    """Return the sine of an angle in radians."""
    _refuse("sin")


def cos(x: Any) -> Any:
    """Return the cosine of an angle in radians."""
    _refuse("cos")


def atan2(y: Any, x: Any) -> Any:
    """Return the angle of the point (x, y) in radians, from -pi to pi."""
    _refuse("atan2")


def floor(x: Any) -> Any:
    """Return the largest whole number that is not above x."""
    _refuse("floor")


def ceil(x: Any) -> Any:
    """Return the smallest whole number that is not below x."""
    _refuse("ceil")


def round(x: Any) -> Any:
    """Return the nearest whole number, ties to even."""
    _refuse("round")


def rounded(x: Any) -> Any:
    """Return x as the parameter will store it: rounded to its dtype, ties to even."""
    _refuse("rounded")


def rounded_down(x: Any) -> Any:
    """Return the largest number of the parameter's dtype that is not above x."""
    _refuse("rounded_down")


def rounded_up(x: Any) -> Any:
    """Return the smallest number of the parameter's dtype that is not below x."""
    _refuse("rounded_up")


def rounded_at_random(x: Any, chance: Any) -> Any:
    """Return x rounded away from zero where `chance` is small enough, else towards zero.

    The mean of the results is x if `chance` is uniform in [0, 1): pass random16(seed, stream).
    """
    _refuse("rounded_at_random")


def random(seed: Any, stream: Any) -> Any:
    """Return a random number in [0, 1) for each element, from seed, stream, step and position.

    Args:
        seed, stream: whole numbers, for example a hyperparameter and a state that begins as the
            parameter's number: state("stream", shape="scalar", init="index").
    """
    _refuse("random")


def random16(seed: Any, stream: Any) -> Any:
    """Return a random number in [0, 1) of 16 bits, for rounding. It costs less than `random`."""
    _refuse("random16")


def abs(x: Any) -> Any:
    """Return the absolute value."""
    _refuse("abs")


def sign(x: Any) -> Any:
    """Return the sign: -1, 0 or 1; 0 for NaN."""
    _refuse("sign")


def maximum(a: Any, b: Any) -> Any:
    """Return the larger of two values, element by element; NaN where either is NaN."""
    _refuse("maximum")


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of two values, element by element; NaN where either is NaN."""
    _refuse("minimum")


def where(condition: Any, if_true: Any, if_false: Any) -> Any:
    """Return if_true where the condition holds, if_false elsewhere, element by element."""
    _refuse("where")


def clamp(x: Any, low: Any, high: Any) -> Any:
    """Return x limited to the range from low to high."""
    _refuse("clamp")


def lerp(start: Any, end: Any, weight: Any) -> Any:
    """Return start + weight * (end - start)."""
    _refuse("lerp")


def row_sum(x: Any) -> Any:
    """Return the sum along the last axis, which keeps size 1: one number per row."""
    _refuse("row_sum")


def col_sum(x: Any) -> Any:
    """Return the sum along the last axis but one, which keeps size 1: one number per column."""
    _refuse("col_sum")


def row_mean(x: Any) -> Any:
    """Return the mean along the last axis, which keeps size 1: one number per row."""
    _refuse("row_mean")


def col_mean(x: Any) -> Any:
    """Return the mean along the last axis but one, which keeps size 1: one number per column."""
    _refuse("col_mean")


def row_norm(x: Any) -> Any:
    """Return the Euclidean norm along the last axis, which keeps size 1: one number per row."""
    _refuse("row_norm")


def col_norm(x: Any) -> Any:
    """Return the Euclidean norm along the last axis but one: one number per column."""
    _refuse("col_norm")


def row_rms(x: Any) -> Any:
    """Return the root mean square along the last axis, which keeps size 1: one number per row."""
    _refuse("row_rms")


def col_rms(x: Any) -> Any:
    """Return the root mean square along the last axis but one: one number per column."""
    _refuse("col_rms")


def row_max_abs(x: Any) -> Any:
    """Return the largest absolute value along the last axis: one number per row."""
    _refuse("row_max_abs")


def col_max_abs(x: Any) -> Any:
    """Return the largest absolute value along the last axis but one: one number per column."""
    _refuse("col_max_abs")


def sum(x: Any, *, over: str | None = None) -> Any:
    """Return the sum of all elements: one number per parameter.

    Args:
        x: a value of every element.
        over: "group" for all elements of all parameters in the group, or "all" for those of all
            groups; parameters without a gradient in this step are left out.
    """
    _refuse("sum")


def mean(x: Any, *, over: str | None = None) -> Any:
    """Return the mean of all elements: one number per parameter.

    Args:
        x: a value of every element.
        over: "group" for all elements of all parameters in the group, or "all" for those of all
            groups; parameters without a gradient in this step are left out.
    """
    _refuse("mean")


def norm(x: Any, *, over: str | None = None) -> Any:
    """Return the Euclidean norm of all elements: sqrt(sum(x**2)).

    Args:
        x: a value of every element.
        over: "group" for all elements of all parameters in the group, or "all" for those of all
            groups; parameters without a gradient in this step are left out.
    """
    _refuse("norm")


def rms(x: Any, *, over: str | None = None) -> Any:
    """Return the root mean square of all elements: sqrt(mean(x**2)).

    Args:
        x: a value of every element.
        over: "group" for all elements of all parameters in the group, or "all" for those of all
            groups; parameters without a gradient in this step are left out.
    """
    _refuse("rms")


def max_abs(x: Any, *, over: str | None = None) -> Any:
    """Return the largest absolute value of all elements; NaN if any element is NaN.

    Args:
        x: a value of every element.
        over: "group" for all elements of all parameters in the group, or "all" for those of all
            groups; parameters without a gradient in this step are left out.
    """
    _refuse("max_abs")


def orthogonalize(x: Any, coefficients: Any, steps: Any, eps: Any) -> Any:
    """Return x with the singular values of each matrix near 1, by Newton-Schulz iterations.

    Args:
        x: a tensor of matrices, in its last two axes.
        coefficients: a hyperparameter of three numbers a, b, c. An iteration maps y to
            a y + b y y' y + c y y' y y' y, starting from y = x / norm(x). A longer tuple has three
            numbers for each iteration in turn, and all later iterations use the last three.
        steps: the number of iterations.
        eps: the smallest norm to divide by. A matrix with a smaller norm gets small singular
            values; a matrix of zeros stays so, whatever eps is.
    """
    _refuse("orthogonalize")


def transpose(x: Any) -> Any:
    """Return x with rows and columns swapped."""
    _refuse("transpose")


def identity(x: Any) -> Any:
    """Return the identity matrix in the shape of a square matrix x."""
    _refuse("identity")


def diag(x: Any) -> Any:
    """Return the diagonal of a square matrix: one number per row of x."""
    _refuse("diag")


def trace(x: Any) -> Any:
    """Return the sum of the diagonal of a square matrix: one number per matrix."""
    _refuse("trace")


def qr(x: Any) -> Any:
    """Return the orthonormal factor of the QR decomposition of a square or a thin matrix."""
    _refuse("qr")


def eigenvectors(x: Any) -> Any:
    """Return the eigenvectors of a symmetric matrix as columns, by ascending eigenvalues."""
    _refuse("eigenvectors")


def eigenvalues(x: Any) -> Any:
    """Return the eigenvalues of a symmetric matrix, ascending: one number per row of x."""
    _refuse("eigenvalues")


def descending(x: Any) -> Any:
    """Return the permutation matrix P for which P @ x is in descending order.

    Args:
        x: one number per row of a square matrix, such as diag(y).
    """
    _refuse("descending")


def inverse_root(x: Any, n: Any, eps: Any) -> Any:
    """Return (x + eps I)^(-1/n) of a symmetric matrix; negative eigenvalues of x become 0.

    Eigenvalues that rounding hides beside the largest one count as 8 machine epsilons of it. So
    the root of a singular matrix is finite. The root of zeros is 0 if eps is 0.

    Args:
        x: a symmetric matrix.
        n: the root: 1 for the inverse, 2 for the inverse square root, 4 for Shampoo's.
        eps: a number that is added to every eigenvalue.
    """
    _refuse("inverse_root")


def singular_vectors(x: Any, rank: Any) -> Any:
    """Return the left singular vectors of the largest singular values, as columns.

    Args:
        x: a matrix.
        rank: the hyperparameter of this name. The number of vectors is at most the parameter's
            number of rows, and at most its number of columns.
    """
    _refuse("singular_vectors")


def gaussian(x: Any, seed: Any, stream: Any) -> Any:
    """Return numbers of the standard normal distribution in the shape of a matrix.

    Args:
        x: a matrix, such as a state. Only its shape matters.
        seed: a whole number, usually a hyperparameter.
        stream: a whole number, usually a scalar state with init="index", so that parameters draw
            different numbers.
    """
    _refuse("gaussian")


def factored(p: Any) -> Any:
    """Tell whether the parameter has rows and columns: at least two axes."""
    _refuse("factored")


def tall(p: Any) -> Any:
    """Tell whether the parameter has rows and columns, and no fewer rows than columns."""
    _refuse("tall")


def ndim(p: Any) -> Any:
    """Return the number of axes of the parameter."""
    _refuse("ndim")


def numel(p: Any) -> Any:
    """Return the number of elements of the parameter."""
    _refuse("numel")


def rows(p: Any) -> Any:
    """Return the number of rows of each matrix: the size of the last axis but one."""
    _refuse("rows")


def cols(p: Any) -> Any:
    """Return the number of columns of each matrix: the size of the last axis."""
    _refuse("cols")


def machine_eps(p: Any) -> Any:
    """Return the distance from 1 to the next number in the parameter's dtype: its finfo.eps."""
    _refuse("machine_eps")
