"""List well-known functions that the language lacks, and how to write them with other ops."""

from __future__ import annotations

from collections.abc import Mapping

_WITHOUT_SUBSTITUTE = (
    "acosh argmax argmin asinh atanh cat cholesky conj copysign cummax cummin cumprod cumsum det "
    "dropout einsum erf erfc erfinv fft gather histogram imag kron lgamma median norm2 outer prod "
    "quantile real reshape searchsorted softmax sort std topk unique"
)

UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(_WITHOUT_SUBSTITUTE.split(), ""),
    "all": "join conditions with `and`; for a condition on each element, use where(…)",
    "any": "join conditions with `or`; for a condition on each element, use where(…)",
    "amax": "max_abs(x), row_max_abs(x), col_max_abs(x): the largest absolute value",
    "acos": "atan2(sqrt(1 - x**2), x)",
    "arccos": "atan2(sqrt(1 - x**2), x)",
    "arcsin": "atan2(x, sqrt(1 - x**2))",
    "arctan": "atan2(x, 1)",
    "arctan2": "atan2(y, x)",
    "asin": "atan2(x, sqrt(1 - x**2))",
    "atan": "atan2(x, 1)",
    "average": "mean(x)",
    "clip": "clamp(x, low, high)",
    "cosh": "(exp(x) + exp(-x)) / 2",
    "cube": "x**3",
    "col_max": "col_max_abs(x) is the largest absolute value of each column",
    "col_min": "",
    "column_mean": "col_mean(x)",
    "column_sum": "col_sum(x)",
    "dot": "sum(a * b)",
    "eig": "eigenvectors(x) and eigenvalues(x) of a symmetric matrix",
    "eigh": "eigenvectors(x) and eigenvalues(x) of a symmetric matrix",
    "eigvalsh": "eigenvalues(x)",
    "expm1": "exp(x) - 1",
    "exp2": "2**x",
    "global_mean": 'mean(x, over="all")',
    "global_norm": 'norm(x, over="all")',
    "global_sum": 'sum(x, over="all")',
    "eye": "identity(x), in the shape of a square matrix x",
    "hypot": "sqrt(x**2 + y**2)",
    "inv": "inverse_root(x, 1, eps) of a symmetric matrix",
    "inverse": "inverse_root(x, 1, eps) of a symmetric matrix",
    "ln": "log(x)",
    "log10": "log(x) / log(10)",
    "log1p": "log(1 + x)",
    "log2": "log(x) / log(2)",
    "matmul": "x @ y",
    "matrix_power": "inverse_root(x, n, eps) is (x + eps I)^(-1/n)",
    "max": "maximum(a, b) works element by element; max_abs(x) and row_max_abs(x) reduce",
    "min": "minimum(a, b) works element by element",
    "mm": "x @ y",
    "mul": "a * b",
    "neg": "-x",
    "pinv": "inverse_root(x, 1, eps) of a symmetric matrix",
    "pow": "x**y",
    "rand": "random(seed, stream)",
    "randint": "floor(n * random(seed, stream))",
    "argsort": "descending(x) is the permutation matrix that sorts numbers per row",
    "normal": "gaussian(x, seed, stream), in the shape of a matrix x",
    "randn": "in a rule on matrices, gaussian(x, seed, stream); in any other, "
    "sqrt(-2 * log(1 - random(seed, k))) * cos(6.283185307179586 * random(seed, k))",
    "reciprocal": "1 / x",
    "relu": "maximum(x, 0)",
    "row_max": "row_max_abs(x) is the largest absolute value of each row",
    "row_min": "",
    "rint": "round(x)",
    "rsqrt": "1 / sqrt(x)",
    "sgn": "sign(x)",
    "sigmoid": "1 / (1 + exp(-x))",
    "sinh": "(exp(x) - exp(-x)) / 2",
    "softplus": "log(1 + exp(x))",
    "softsign": "x / (1 + abs(x))",
    "sqr": "x**2; the root is sqrt(x)",
    "square": "x**2",
    "svd": "singular_vectors(x, rank); those of transpose(x) are the right ones",
    "tan": "sin(x) / cos(x)",
    "trunc": "sign(x) * floor(abs(x))",
    "var": "mean(x**2) - mean(x)**2",
    "zeros_like": "0 * x, or the number 0",
}
"""Substitutes for functions that the language lacks; "" for a function without one."""
