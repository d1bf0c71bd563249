"""Functions of torch, and what each computes in the words of the language."""

from __future__ import annotations

from collections.abc import Callable

from optgen.importer.recording import NotImportedError, author_line
from optgen.importer.values import HUGE, Value, apply, constant, is_constant


def _words(text: str) -> list[str]:
    return text.split()


SAME = frozenset(
    [
        "detach",
        "clone",
        "contiguous",
        "to",
        "float",
        "half",
        "bfloat16",
        "double",
        "type",
        "type_as",
        "view_as",
        "data",
        "real",
        "requires_grad_",
        "alias",
        "positive",
        "cpu",
        "conj",
        "resolve_conj",
        "resolve_neg",
        "reshape",
        "view",
        "flatten",
        "ravel",
        "squeeze",
        "unsqueeze",
        "expand",
        "expand_as",
        "unsqueeze_",
        "squeeze_",
        "to",
    ]
)
PLAIN = frozenset(
    [
        "dim",
        "stride",
        "is_complex",
        "_record_function_enter_new",
        "_record_function_exit",
        "is_floating_point",
        "is_contiguous",
        "element_size",
        "is_same_size",
        "__len__",
        "is_inference",
        "is_storage",
        "_is_zerotensor",
        "is_tensor",
        "promote_types",
        "result_type",
        "can_cast",
        "data_ptr",
        "__hash__",
        "__repr__",
        "__format__",
        "is_sparse",
        "get_device",
        "has_names",
        "storage_offset",
        "__reversed__",
        "__array__",
        "untyped_storage",
        "ndimension",
    ]
)
UNARY = {
    **{
        word: word
        for word in [
            "sqrt",
            "exp",
            "log",
            "abs",
            "sign",
            "sin",
            "cos",
            "tanh",
            "floor",
            "ceil",
            "round",
        ]
    },
    "neg": "neg",
    "negative": "neg",
    "absolute": "abs",
    "sgn": "sign",
    "__abs__": "abs",
    "__neg__": "neg",
}
BINARY = {
    **{word: word for word in _words("mul pow maximum minimum atan2")},
    "multiply": "mul",
    "true_divide": "div",
    "clamp_min": "maximum",
    "clamp_max": "minimum",
    "remainder": "mod",
    "divide": "div",
    "float_power": "pow",
    **{word: word for word in _words("gt lt ge le eq ne")},
    "greater": "gt",
    "less": "lt",
    "greater_equal": "ge",
    "less_equal": "le",
    "and": "and",
    "or": "or",
    "logical_and": "and",
    "logical_or": "or",
    "bitwise_and": "and",
    "bitwise_or": "or",
}
REDUCTIONS = {
    "sum": "sum",
    "mean": "mean",
    "norm": "norm",
    "vector_norm": "norm",
    "matrix_norm": "norm",
    "std": "std",
    "var": "var",
    "max": "max",
    "amax": "max",
}
MATRIX_WORDS = frozenset(_words("matmul mm addmm t transpose swapaxes adjoint"))


def _linear(op: str) -> Callable[..., Value]:
    def build(a: Value, b: Value, alpha: Value | None = None) -> Value:
        return apply(op, a, b if alpha is None else apply("mul", alpha, b))

    return build


def _addc(op: str) -> Callable[..., Value]:
    def build(a: Value, b: Value, c: Value, value: Value | None = None) -> Value:
        if b.key == c.key and op == "mul" and b.name == c.name:
            product = apply("pow", b, constant(2))
            product = product if value is None else apply("mul", value, product)
        elif value is None:
            product = apply(op, b, c)
        else:
            product = apply(op, apply("mul", value, b), c)
        return apply("add", a, product)

    return build


def _divide(a: Value, b: Value, rounding_mode: Value | None = None) -> Value:
    if rounding_mode is not None:
        raise NotImportedError("a division that rounds", author_line(), "write floor(a / b)")
    return apply("div", a, b)


def _multiply(a: Value, b: Value) -> Value:
    return apply("pow", a, constant(2)) if a.key == b.key and a is b else apply("mul", a, b)


def _clamp(x: Value, min: Value | None = None, max: Value | None = None) -> Value:
    low = None if min is None or (min.constant is None and is_constant(min)) else min
    high = None if max is None or (max.constant is None and is_constant(max)) else max
    if low is not None and high is not None:
        return Value("clamp", (x, low, high))
    if low is not None:
        return Value("maximum", (x, low))
    return x if high is None else Value("minimum", (x, high))


def _masked_fill(x: Value, mask: Value, value: Value) -> Value:
    return Value("where", (mask, value, x))


def _where(condition: Value, a: Value, b: Value) -> Value:
    return Value("where", (condition, a, b))


def _nan_to_num(
    x: Value, nan: Value | None = None, posinf: Value | None = None, neginf: Value | None = None
) -> Value:
    low, high = neginf or constant(-HUGE), posinf or constant(HUGE)
    known = Value("where", (Value("eq", (x, x)), x, nan or constant(0)))
    if low.constant == -HUGE and high.constant == HUGE:
        return Value("clamp", (known, low, high))
    known = Value("where", (Value("gt", (known, constant(HUGE))), high, known))
    return Value("where", (Value("lt", (known, constant(-HUGE))), low, known))


def _not(x: Value) -> Value:
    return Value("not", (x,))


BUILDERS: dict[str, Callable[..., Value]] = {
    "add": _linear("add"),
    "sub": _linear("sub"),
    "subtract": _linear("sub"),
    "rsub": lambda a, b: apply("sub", b, a),
    "__rsub__": lambda a, b: apply("sub", b, a),
    "__rdiv__": lambda a, b: apply("div", b, a),
    "__rtruediv__": lambda a, b: apply("div", b, a),
    "__rpow__": lambda a, b: apply("pow", b, a),
    "mul": _multiply,
    "multiply": _multiply,
    "div": _divide,
    "addcmul": _addc("mul"),
    "addcdiv": _addc("div"),
    "lerp": lambda a, b, weight: Value("lerp", (a, b, weight)),
    "square": lambda a: apply("pow", a, constant(2)),
    "reciprocal": lambda a: apply("div", constant(1), a),
    "rsqrt": lambda a: apply("div", constant(1), apply("sqrt", a)),
    "clamp": _clamp,
    "clip": _clamp,
    "masked_fill": _masked_fill,
    "where": _where,
    "logical_not": _not,
    "nan_to_num": _nan_to_num,
    "isnan": lambda x: Value("ne", (x, x)),
    "bitwise_not": _not,
    "sigmoid": lambda a: apply(
        "div", constant(1), apply("add", apply("exp", apply("neg", a)), constant(1))
    ),
    "copy": lambda a, b, **_: b,
    "zero": lambda a: constant(0),
    "fill": lambda a, b: b,
    "hypot": lambda a, b: apply(
        "sqrt", apply("add", *(apply("pow", x, constant(2)) for x in (a, b)))
    ),
}
CREATIONS: dict[str, float | None] = {
    "zeros_like": 0,
    "zeros": 0,
    "ones_like": 1,
    "ones": 1,
    "new_zeros": 0,
    "new_ones": 1,
    "full_like": None,
    "full": None,
    "tensor": None,
    "new_full": None,
    "scalar_tensor": None,
    "as_tensor": None,
    "new_tensor": None,
    "empty": 0,
    "empty_like": 0,
}


OF_ANSWERS = frozenset(
    [
        "where",
        "masked_fill",
        "and",
        "or",
        "logical_and",
        "logical_or",
        "logical_not",
        "bitwise_and",
        "bitwise_or",
        "bitwise_not",
    ]
)


IGNORED_OPTIONS = (
    "dtype",
    "device",
    "memory_format",
    "non_blocking",
    "keepdim",
    "dim",
    "copy",
    "layout",
)
