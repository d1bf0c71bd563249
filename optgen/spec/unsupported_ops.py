"""List well-known functions that the language lacks, and how to write them with other ops."""

from __future__ import annotations

from collections.abc import Mapping

_WITHOUT_SUBSTITUTE = (
    "acosh argmax argmin asinh atanh cat cholesky conj copysign cummax cummin cumprod cumsum det "
    "diag dropout eigh einsum erf erfc erfinv fft gather histogram imag inverse inv kron lgamma "
    "matmul median mm norm2 outer pinv prod qr quantile real reshape "
    "searchsorted softmax sort std svd topk trace transpose unique"
)

UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(_WITHOUT_SUBSTITUTE.split(), ""),
    "all": "join conditions with `and`; for a condition on each element, use where(…)",
    "any": "join conditions with `or`; for a condition on each element, use where(…)",
    "amax": "max_abs(x) is the largest absolute value",
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
    "col_max": "",
    "col_min": "",
    "column_mean": "col_mean(x)",
    "column_sum": "col_sum(x)",
    "dot": "sum(a * b)",
    "expm1": "exp(x) - 1",
    "exp2": "2**x",
    "global_mean": "a rule sees one parameter at a time: mean(x) is the mean of one parameter",
    "global_norm": "a rule sees one parameter at a time: norm(x) is the norm of one parameter",
    "global_sum": "a rule sees one parameter at a time: sum(x) is the sum of one parameter",
    "hypot": "sqrt(x**2 + y**2)",
    "ln": "log(x)",
    "log10": "log(x) / log(10)",
    "log1p": "log(1 + x)",
    "log2": "log(x) / log(2)",
    "max": "maximum(a, b) works element by element; max_abs(x) reduces a whole tensor",
    "min": "minimum(a, b) works element by element",
    "mul": "a * b",
    "neg": "-x",
    "pow": "x**y",
    "rand": "random(seed, stream)",
    "randint": "floor(n * random(seed, stream))",
    "randn": "sqrt(-2 * log(1 - random(seed, k))) * cos(6.283185307179586 * random(seed, k))",
    "reciprocal": "1 / x",
    "relu": "maximum(x, 0)",
    "row_max": "",
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
    "tan": "sin(x) / cos(x)",
    "trunc": "sign(x) * floor(abs(x))",
    "var": "mean(x**2) - mean(x)**2",
    "zeros_like": "0 * x, or the number 0",
}
