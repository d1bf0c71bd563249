"""Show what a spec file imports. tests/spec/test_op_names.py writes this file."""

from typing import Any

from optgen.spec.declare import Spec as Spec
from optgen.spec.declare import choice as choice
from optgen.spec.declare import elementwise as elementwise
from optgen.spec.declare import fixed as fixed
from optgen.spec.declare import flag as flag
from optgen.spec.declare import given as given
from optgen.spec.declare import hyper as hyper
from optgen.spec.declare import modifier as modifier
from optgen.spec.declare import optimizer as optimizer
from optgen.spec.declare import require as require
from optgen.spec.declare import state as state

def sqrt(x: Any) -> Any:
    """Return the square root; NaN below zero."""

def exp(x: Any) -> Any:
    """Return e to the power of x."""

def log(x: Any) -> Any:
    """Return the natural logarithm; -inf at zero, NaN below."""

def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent."""

def sin(x: Any) -> Any:
    """Return the sine of an angle in radians."""

def cos(x: Any) -> Any:
    """Return the cosine of an angle in radians."""

def atan2(y: Any, x: Any) -> Any:
    """Return the angle of the point (x, y) in radians, from -pi to pi."""

def floor(x: Any) -> Any:
    """Return the largest whole number that is not above x."""

def ceil(x: Any) -> Any:
    """Return the smallest whole number that is not below x."""

def round(x: Any) -> Any:
    """Return the nearest whole number, ties to even."""

def abs(x: Any) -> Any:
    """Return the absolute value."""

def sign(x: Any) -> Any:
    """Return the sign: -1, 0 or 1; 0 for NaN."""

def maximum(a: Any, b: Any) -> Any:
    """Return the larger of two values, element by element; NaN where either is NaN."""

def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of two values, element by element; NaN where either is NaN."""

def where(condition: Any, if_true: Any, if_false: Any) -> Any:
    """Return if_true where the condition holds, if_false elsewhere, element by element."""

def clamp(x: Any, low: Any, high: Any) -> Any:
    """Return x limited to the range from low to high."""

def lerp(start: Any, end: Any, weight: Any) -> Any:
    """Return start + weight * (end - start)."""

def rounded(x: Any) -> Any:
    """Return x as the parameter will store it: rounded to its dtype, ties to even."""

def rounded_down(x: Any) -> Any:
    """Return the largest number of the parameter's dtype that is not above x."""

def rounded_up(x: Any) -> Any:
    """Return the smallest number of the parameter's dtype that is not below x."""

def rounded_at_random(x: Any, chance: Any) -> Any:
    """Return x rounded away from zero where `chance` is small enough, else towards zero.

    The mean of the results is x if `chance` is uniform in [0, 1): pass random16(seed, stream).
    """

def random(seed: Any, stream: Any) -> Any:
    """Return a random number in [0, 1) for each element, from seed, stream, step and position.

    Args:
        seed, stream: whole numbers, for example a hyperparameter and a state that begins as the
            parameter's number: state("stream", shape="scalar", init="index").
    """

def random16(seed: Any, stream: Any) -> Any:
    """Return a random number in [0, 1) of 16 bits, for rounding. It costs less than `random`."""

def fresh(state: Any) -> Any:
    """Tell whether this step created a state: it is the first with a gradient for the parameter."""

def row_sum(x: Any) -> Any:
    """Return the sum along the last axis, which keeps size 1: one number per row."""

def col_sum(x: Any) -> Any:
    """Return the sum along the last axis but one, which keeps size 1: one number per column."""

def row_mean(x: Any) -> Any:
    """Return the mean along the last axis, which keeps size 1: one number per row."""

def col_mean(x: Any) -> Any:
    """Return the mean along the last axis but one, which keeps size 1: one number per column."""

def row_norm(x: Any) -> Any:
    """Return the Euclidean norm along the last axis, which keeps size 1: one number per row."""

def col_norm(x: Any) -> Any:
    """Return the Euclidean norm along the last axis but one: one number per column."""

def row_rms(x: Any) -> Any:
    """Return the root mean square along the last axis, which keeps size 1: one number per row."""

def col_rms(x: Any) -> Any:
    """Return the root mean square along the last axis but one: one number per column."""

def row_max_abs(x: Any) -> Any:
    """Return the largest absolute value along the last axis: one number per row."""

def col_max_abs(x: Any) -> Any:
    """Return the largest absolute value along the last axis but one: one number per column."""

def sum(x: Any, *, over: str | None = None) -> Any:
    """Return the sum of all elements: one number per parameter.

    Args:
        x: a value of every element.
        over: "matrix" for one number per matrix of a parameter; "group" for all elements of all
            parameters in the group, or "all" for those of all groups. The last two leave out
            parameters without a gradient in this step.
    """

def mean(x: Any, *, over: str | None = None) -> Any:
    """Return the mean of all elements: one number per parameter.

    Args:
        x: a value of every element.
        over: "matrix" for one number per matrix of a parameter; "group" for all elements of all
            parameters in the group, or "all" for those of all groups. The last two leave out
            parameters without a gradient in this step.
    """

def norm(x: Any, *, over: str | None = None) -> Any:
    """Return the Euclidean norm of all elements: sqrt(sum(x**2)).

    Args:
        x: a value of every element.
        over: "matrix" for one number per matrix of a parameter; "group" for all elements of all
            parameters in the group, or "all" for those of all groups. The last two leave out
            parameters without a gradient in this step.
    """

def rms(x: Any, *, over: str | None = None) -> Any:
    """Return the root mean square of all elements: sqrt(mean(x**2)).

    Args:
        x: a value of every element.
        over: "matrix" for one number per matrix of a parameter; "group" for all elements of all
            parameters in the group, or "all" for those of all groups. The last two leave out
            parameters without a gradient in this step.
    """

def max_abs(x: Any, *, over: str | None = None) -> Any:
    """Return the largest absolute value of all elements; NaN if any element is NaN.

    Args:
        x: a value of every element.
        over: "matrix" for one number per matrix of a parameter; "group" for all elements of all
            parameters in the group, or "all" for those of all groups. The last two leave out
            parameters without a gradient in this step.
    """

def orthogonalize(
    x: Any,
    coefficients: Any,
    steps: Any,
    eps: Any = None,
    *,
    divisor: str = "norm",
    dtype: str = "bfloat16",
) -> Any:
    """Return x with the singular values of each matrix near 1, by Newton-Schulz iterations.

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
    """

def transpose(x: Any) -> Any:
    """Return x with rows and columns swapped."""

def identity(x: Any) -> Any:
    """Return the identity matrix in the shape of a square matrix x."""

def row_ones(x: Any) -> Any:
    """Return ones in the shape of one number per row of x."""

def col_ones(x: Any) -> Any:
    """Return ones in the shape of one number per column of x."""

def lower(x: Any) -> Any:
    """Return the lower triangle of a matrix with its diagonal; other elements are 0."""

def upper(x: Any) -> Any:
    """Return the upper triangle of a matrix with its diagonal; other elements are 0."""

def diag(x: Any) -> Any:
    """Return the diagonal of a square matrix: one number per row of x."""

def trace(x: Any) -> Any:
    """Return the sum of the diagonal of a square matrix: one number per matrix."""

def qr(x: Any) -> Any:
    """Return the orthonormal factor of the QR decomposition of a square or a thin matrix."""

def cholesky(x: Any) -> Any:
    """Return the lower triangle L with positive diagonal for which L @ transpose(L) is x.

    NaN for a matrix that is not positive definite.

    Args:
        x: a symmetric matrix, of which the lower triangle is read.
    """

def solve_triangular(l: Any, x: Any) -> Any:
    """Return y for which l @ y is x.

    NaN for a matrix with a zero on its diagonal.

    Args:
        l: a square matrix, of which the lower triangle is read.
        x: a matrix with as many rows as l.
    """

def solve_transposed(l: Any, x: Any) -> Any:
    """Return y for which transpose(l) @ y is x.

    NaN for a matrix with a zero on its diagonal.

    Args:
        l: a square matrix, of which the lower triangle is read.
        x: a matrix with as many rows as l.
    """

def eigenvectors(x: Any) -> Any:
    """Return the eigenvectors of a symmetric matrix as columns, by ascending eigenvalues."""

def eigenvalues(x: Any) -> Any:
    """Return the eigenvalues of a symmetric matrix, ascending: one number per row of x."""

def descending(x: Any) -> Any:
    """Return the permutation matrix P for which P @ x is in descending order.

    Args:
        x: one number per row of a square matrix, such as diag(y).
    """

def inverse_root(x: Any, n: Any, eps: Any) -> Any:
    """Return (x + eps I)^(-1/n) of a symmetric matrix; negative eigenvalues of x become 0.

    Eigenvalues that rounding hides beside the largest one count as 8 machine epsilons of it. So
    the root of a singular matrix is finite. The root of zeros is 0 if eps is 0.

    Args:
        x: a symmetric matrix.
        n: the root: 1 for the inverse, 2 for the inverse square root, 4 for Shampoo's.
        eps: a number that is added to every eigenvalue.
    """

def singular_vectors(x: Any, rank: Any) -> Any:
    """Return the left singular vectors of the largest singular values, as columns.

    Args:
        x: a matrix.
        rank: the hyperparameter of this name. The number of vectors is at most the parameter's
            number of rows, and at most its number of columns.
    """

def gaussian(x: Any, seed: Any, stream: Any) -> Any:
    """Return numbers of the standard normal distribution in the shape of a matrix.

    Args:
        x: a matrix, such as a state. Only its shape matters.
        seed: a whole number, usually a hyperparameter.
        stream: a whole number, usually a scalar state with init="index", so that parameters draw
            different numbers.
    """

def factored(p: Any) -> Any:
    """Tell whether the parameter has rows and columns: at least two axes."""

def tall(p: Any) -> Any:
    """Tell whether the parameter has rows and columns, and no fewer rows than columns."""

def ndim(p: Any) -> Any:
    """Return the number of axes of the parameter."""

def numel(p: Any) -> Any:
    """Return the number of elements of the parameter."""

def rows(p: Any) -> Any:
    """Return the number of rows of each matrix: the size of the last axis but one."""

def cols(p: Any) -> Any:
    """Return the number of columns of each matrix: the size of the last axis."""

def machine_eps(p: Any) -> Any:
    """Return the distance from 1 to the next number in the parameter's dtype: its finfo.eps."""
