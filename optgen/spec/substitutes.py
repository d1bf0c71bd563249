"""Name what to write instead of what torch, NumPy and Python have and the language lacks."""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optgen.ir.ops import CALLABLE_OPS
from optgen.spec.errors import did_you_mean

_WITHOUT_SUBSTITUTE = (
    "acosh argmax argmin asinh atanh cat conj copysign cummax cummin cumprod cumsum det "
    "dropout einsum erf erfc erfinv fft gather histogram imag kron lgamma median norm2 outer prod "
    "quantile real reshape searchsorted softmax sort topk view unique"
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
    "chol": "cholesky(x)",
    "cosh": "(exp(x) + exp(-x)) / 2",
    "cube": "x**3",
    "bool": "compare it: x != 0",
    "breakpoint": "leave it out: a rule is read and never run",
    "col_max": "col_max_abs(x) is the largest absolute value of each column",
    "col_min": "",
    "column_mean": "col_mean(x)",
    "column_sum": "col_sum(x)",
    "dot": "sum(a * b)",
    "eig": "eigenvectors(x) and eigenvalues(x) of a symmetric matrix",
    "eigh": "eigenvectors(x) and eigenvalues(x) of a symmetric matrix",
    "eigvalsh": "eigenvalues(x)",
    "enumerate": "the language has no loops: write a helper, and call it once for each turn",
    "expm1": "exp(x) - 1",
    "exp2": "2**x",
    "global_mean": 'mean(x, over="all")',
    "global_norm": 'norm(x, over="all")',
    "global_sum": 'sum(x, over="all")',
    "eye": "identity(x), in the shape of a square matrix x",
    "finfo": "machine_eps(p) is the eps of the parameter's dtype",
    "float": "leave it out: a rule computes numbers in float64. None stands for an infinite "
    "hyperparameter: hyper(None, optional=True)",
    "hypot": "sqrt(x**2 + y**2)",
    "int": "floor(x)",
    "inv": "inverse_root(x, 1, eps) of a symmetric matrix",
    "inverse": "inverse_root(x, 1, eps) of a symmetric matrix",
    "isclose": "abs(a - b) < tolerance",
    "isfinite": "0 * x == 0",
    "isinf": "0 * x != 0 and x == x",
    "isnan": "x != x",
    "len": "rows(p), cols(p), numel(p) and ndim(p) are sizes of the parameter",
    "ln": "log(x)",
    "log10": "log(x) / log(10)",
    "log1p": "log(1 + x)",
    "log2": "log(x) / log(2)",
    "matmul": "x @ y",
    "matrix_norm": 'norm(x, over="matrix")',
    "matrix_power": "inverse_root(x, n, eps) is (x + eps I)^(-1/n)",
    "max": "maximum(a, b) works element by element; max_abs(x) and row_max_abs(x) reduce",
    "min": "minimum(a, b) works element by element",
    "mm": "x @ y",
    "mul": "a * b",
    "nan_to_num": "where(x == x, x, 0)",
    "neg": "-x",
    "pinv": "inverse_root(x, 1, eps) of a symmetric matrix",
    "pow": "x**y",
    "rand": "random(seed, stream)",
    "randint": "floor(n * random(seed, stream))",
    "argsort": "descending(x) is the permutation matrix that sorts numbers per row",
    "normal": "gaussian(x, seed, stream), in the shape of a matrix x",
    "randn": "in a rule on matrices, gaussian(x, seed, stream); in any other, "
    "sqrt(-2 * log(1 - random(seed, k))) * cos(6.283185307179586 * random(seed, k))",
    "range": "the language has no loops: write a helper, and call it once for each turn",
    "reciprocal": "1 / x",
    "relu": "maximum(x, 0)",
    "row_max": "row_max_abs(x) is the largest absolute value of each row",
    "row_min": "",
    "rint": "round(x)",
    "rsqrt": "1 / sqrt(x)",
    "sgn": "sign(x)",
    "sigmoid": "1 / (1 + exp(-x))",
    "solve": "y = cholesky(a) of a positive definite a: "
    "solve_transposed(y, solve_triangular(y, x))",
    "sinh": "(exp(x) - exp(-x)) / 2",
    "softplus": "log(1 + exp(x))",
    "softsign": "x / (1 + abs(x))",
    "sqr": "x**2; the root is sqrt(x)",
    "square": "x**2",
    "std": "sqrt(mean((x - mean(x))**2))",
    "svd": "singular_vectors(x, rank); those of transpose(x) are the right ones",
    "tan": "sin(x) / cos(x)",
    "tril": "lower(x)",
    "triu": "upper(x)",
    "trunc": "sign(x) * floor(abs(x))",
    "var": "mean(x**2) - mean(x)**2",
    "ones": "the number 1, which goes with tensors of any shape; as a vector of a matrix x, "
    "row_ones(x)",
    "ones_like": "the number 1, which goes with tensors of any shape",
    "print": "leave it out: a rule is read and never run",
    "zeros": "the number 0, which goes with tensors of any shape",
    "zeros_like": "the number 0, which goes with tensors of any shape",
}
"""Substitutes for functions that the language lacks; "" for a function without one."""


_SIZES = {"0": "rows", "-2": "rows", "1": "cols", "-1": "cols"}
_REDUCTIONS = ("sum", "mean", "norm", "rms", "max_abs")
_ROW_OR_COLUMN = {"-1": "row", "1": "row", "-2": "col", "0": "col"}
"""A number per row or per column: the result of a torch function that reduces this axis."""
_BOTH_AXES = ("-2, -1", "-1, -2")

_MODULES = ("torch", "np", "numpy", "math", "F", "jnp", "jax", "linalg", "functional", "nn", "tl")
_GROUPS = ("group", "self", "state", "param_groups", "defaults", "hypers", "config", "args")
"""Names of what an optimizer's class keeps, from which its `step` reads numbers and states."""

_NO_EFFECT = (
    "as_tensor asarray bfloat16 clone contiguous cpu cuda data detach double expand_as flatten "
    "float half no_grad ravel requires_grad squeeze tensor to type type_as unsqueeze view_as"
)
"""Attributes and functions of torch that a rule does without."""

_OPERATORS = {
    "add": "+",
    "sub": "-",
    "subtract": "-",
    "mul": "*",
    "multiply": "*",
    "div": "/",
    "divide": "/",
    "true_divide": "/",
    "pow": "**",
    "float_power": "**",
    "remainder": "%",
    "matmul": "@",
    "mm": "@",
    "bmm": "@",
    "dot": "@",
    "gt": ">",
    "lt": "<",
    "ge": ">=",
    "le": "<=",
}
_FORMULAS = {
    "addcmul": "{0} + {value} * {1} * {2}",
    "addcdiv": "{0} + {value} * {1} / {2}",
    "addmm": "{0} + {1} @ {2}",
    "outer": "{0} @ transpose({1})",
    "square": "{0}**2",
    "rsqrt": "1 / sqrt({0})",
    "reciprocal": "1 / {0}",
    "neg": "-{0}",
    "t": "transpose({0})",
    "T": "transpose({0})",
    "mT": "transpose({0})",
    "swapaxes": "transpose({0})",
    "copy": "{1}",
    "fill": "{1}",
    "zero": "0",
    "absolute": "abs({0})",
    "clip": "clamp({0}, {1}, {2})",
    "where": "where({0}, {1}, {2})",
}
"""Formulas for functions and methods of torch, in which `{0}` is the text of an operand."""

_STATEMENTS: Mapping[type[ast.stmt], str] = {
    ast.For: "the language has no loops: write a helper, and call it once for each turn",
    ast.While: "the language has no loops: write a helper, and call it once for each turn",
    ast.With: "leave it out: a rule is read and never run, so it records no gradients",
    ast.FunctionDef: "write the helper above the rule, at the top level of the file",
    ast.ClassDef: "a spec is one function: states and hyperparameters stand in its signature",
    ast.Assert: "write require(condition, message) before the rule: the constructor checks it",
    ast.Raise: "write require(condition, message) before the rule: the constructor checks it",
    ast.Try: "nothing in a rule raises an error; where(condition, a, b) chooses values",
    ast.Delete: "leave it out: names that are not stored end with the rule",
    ast.Global: "a rule reads the file's constants by their names, and writes none",
}
_EXPRESSIONS: Mapping[type[ast.expr], str] = {
    ast.IfExp: "write an if statement, or where(condition, a, b) for tensors",
    ast.Lambda: "write a plain helper function in the file",
    ast.NamedExpr: "write a separate assignment",
    ast.Tuple: "a value is one tensor or number; a helper returns one",
    ast.ListComp: "the language has no loops and no lists: write each value out, or a helper",
    ast.GeneratorExp: "the language has no loops and no lists: write each value out, or a helper",
    ast.List: "a value is one tensor or number: give each its own name",
    ast.Dict: "a value is one tensor or number: give each its own name",
    ast.JoinedStr: "a value is one tensor or number; texts stand in declarations and in require",
}
_PLAIN_NAME = "call it by its plain name: "
_ASSIGN = "write assignments instead: m = beta * m + g"
NO_SUBSTITUTE = "no word does this; docs/spec-language.md lists the words"
_BITWISE = {ast.BitAnd: "and", ast.BitOr: "or"}
_ALLOWED = "allowed: numbers, names, + - * / ** % @, comparisons, and/or/not, functions"
_READ_NOT_RUN = "a spec is read, not run"


def statement_hint(node: ast.stmt) -> str:
    """Return what to write instead of a statement that the language lacks; "" if nothing fits."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return f"{_READ_NOT_RUN}: leave it out. Words such as sqrt and exp come from optgen.spec"
    kinds = {ast.AsyncFor: ast.For, ast.AsyncWith: ast.With, ast.Nonlocal: ast.Global}
    return _STATEMENTS.get(kinds.get(type(node), type(node)), "")


@dataclass(frozen=True)
class Names:
    """The names of a rule that hints use: the parameter, the gradient, hypers, states by key."""

    param: str
    grad: str
    hypers: tuple[str, ...]
    symbols_by_key: Mapping[str, str]

    def read(self, key: str) -> str:
        """Return how a rule reads what a param group or a state dict keeps under a key."""
        if key in self.hypers:
            return f"write {key}: a rule reads a hyperparameter by its name"
        if key in self.symbols_by_key:
            return f'write {self.symbols_by_key[key]}, the state with the key "{key}"'
        if key == "step":
            return "write t, the step count: it is the third input, p, g, t, /"
        return (
            f"declare it, and read it by its name: {key}=hyper(…) after `*`, or a state after `/`"
        )


def expression_hint(node: ast.expr, names: Names) -> str:
    """Return what to write instead of an expression that the language lacks."""
    match node:
        case ast.Call(func=ast.Attribute()):
            return _call_hint(node, names)
        case ast.Call(func=function):
            return _EXPRESSIONS.get(type(function), _ALLOWED)
        case ast.Subscript(value=ast.Attribute(attr="shape", value=tensor), slice=index):
            return _size_hint(ast.unparse(tensor), ast.unparse(index), names)
        case ast.Subscript(value=container, slice=ast.Constant(value=str() as key)):
            return names.read(key)
        case ast.Subscript(value=container) if _root(container) in _GROUPS:
            return "a rule is written for one tensor: p, g and states are those of one parameter"
        case ast.Subscript():
            return "a tensor has no parts; a tuple hyperparameter has items: betas[0]"
        case ast.Attribute():
            return _call_hint(ast.Call(node, [], []), names)
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return f"write floor({ast.unparse(ast.BinOp(left, ast.Div(), right))})"
        case ast.BinOp(left=left, op=ast.BitXor(), right=right):
            while isinstance(left, ast.BinOp | ast.UnaryOp):  # `a * b^2` is (a * b)^2 to Python
                left = left.right if isinstance(left, ast.BinOp) else left.operand
            return f"a power is written with two stars: {_operand(left)}**{_operand(right)}"
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr() as op):
            return f"join conditions with `{_BITWISE[type(op)]}`, inside where(…) too"
        case ast.UnaryOp(op=ast.Invert()):
            return "write `not` before a condition"
        case ast.BinOp(op=ast.LShift() | ast.RShift()):
            return "multiply by a power: x * 2**n"
    return _EXPRESSIONS.get(type(node), _ALLOWED)


def assignment_hint(target: ast.expr, names: Names) -> str:
    """Return what to assign to instead of a part of a tensor, of a group or of an object."""
    match target:
        case ast.Subscript(slice=ast.Constant(value=str() as key)) if key in names.symbols_by_key:
            return f"assign to the state: {names.symbols_by_key[key]} = …"
        case ast.Attribute(attr="data", value=ast.Name(id=name)):
            return f"assign to the name: {name} = …"
        case ast.Attribute(attr="grad", value=ast.Name()):
            return f"assign to the gradient: {names.grad} = …"
        case ast.Subscript(value=ast.Name(id=name)) if name not in _GROUPS:
            return f"assign all of it: {name} = where(condition, new, {name})"
    return ""


def in_place_hint(call: ast.Call, names: Names) -> str:
    """Return the assignment to write instead of `m.mul_(beta)`."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if isinstance(owner, ast.Call) and isinstance(call.func, ast.Attribute):  # m.mul_(a).add_(b)
        name, equals, value = in_place_hint(owner, names).removeprefix("write ").partition(" = ")
        if not equals or not name.isidentifier():
            return _ASSIGN
        outer = ast.Attribute(ast.Name(f"({value})"), call.func.attr)
        hint = _call_hint(ast.Call(outer, call.args, call.keywords), names)
        if not hint.startswith(("write ", _PLAIN_NAME)):
            return _ASSIGN
        value = hint.removeprefix("write ").removeprefix(_PLAIN_NAME)
        return f"write {name} = {_without_needless_parentheses(value)}"
    if isinstance(owner, ast.Attribute) and owner.attr == "data":
        owner = owner.value
    hint = _call_hint(call, names)
    for beginning in ("write ", _PLAIN_NAME):
        if hint.startswith(beginning) and isinstance(owner, ast.Name) and owner.id not in _MODULES:
            value = hint.removeprefix(beginning).replace(".data", "")
            return f"write {owner.id} = {value}"
    return _ASSIGN


def _call_hint(call: ast.Call, names: Names) -> str:
    """Return what to write instead of `x.name(args)`, `torch.name(args)` or an attribute."""
    function = call.func
    assert isinstance(function, ast.Attribute)
    name, root = function.attr.removesuffix("_"), _root(function)
    args = [*map(ast.unparse, call.args)]
    if root in _GROUPS and name not in CALLABLE_OPS:
        return names.read(function.attr)
    owner = ast.unparse(function.value)
    is_module = root in _MODULES
    operands = args if is_module else [owner, *args]
    if not is_module and function.attr == "grad":
        return f"write {names.grad}, the gradient: it is the second input"
    if name in ("shape", "size"):
        return _size_hint(owner, args[0] if args else "", names)
    if name in ("ndim", "dim"):
        return f"write ndim({names.param})"
    if name in ("numel", "nelement"):
        return f"write numel({names.param})"
    if name == "item":
        return f"leave .item() out: {owner} is a number already, if it is one"
    if name in ("pi", "e", "inf", "nan") and is_module:
        value = {"pi": math.pi, "e": math.e}.get(name)
        return f"write the number above the rule: {name.upper()} = {value}" if value else _ALLOWED
    if name in ("device", "dtype"):
        return "a rule is written once for all devices and dtypes: leave it out"
    if name in _NO_EFFECT.split():
        plain = operands[0] if operands else owner
        return f"leave .{function.attr} out, and write {plain}: a rule is read and never run"
    return function_hint(name, operands, call.keywords)


def function_hint(name: str, operands: Sequence[str], keywords: Sequence[ast.keyword] = ()) -> str:
    """Return what to write instead of a call of a function that torch or NumPy has."""
    named = {keyword.arg: _operand(keyword.value) for keyword in keywords}
    dim = named.get("dim", named.get("axis"))
    if name in ("clamp", "clip") and len(operands) == 1 and named:
        low, high = named.get("min"), named.get("max")
        if low is None or high is None:
            return f"write {'minimum' if low is None else 'maximum'}({operands[0]}, {low or high})"
        operands = [*operands, low, high]
    if name in ("zeros", "ones", "empty", "full", "zeros_like", "ones_like", "full_like"):
        number = {"z": "0", "o": "1", "e": "0"}.get(name[0], operands[-1] if operands else "x")
        return f"write the number {number}: it goes with tensors of any shape"
    if name in _OPERATORS and len(operands) > 1:
        alpha = f"{named['alpha']} * " if "alpha" in named else ""
        left, right = (_in_parentheses(text) for text in operands[:2])
        return f"write {left} {_OPERATORS[name]} {alpha}{right}"
    if name in _FORMULAS:
        texts = [*map(_in_parentheses, operands)]
        with contextlib.suppress(IndexError):
            formula = _FORMULAS[name].format(*texts, value=named.get("value", "1"))
            return f"write {_without_needless_parentheses(formula)}"
    reduction = {"amax": "max_abs", "max": "max_abs", "vector_norm": "norm"}.get(name, name)
    if reduction in _REDUCTIONS and (dim is not None or len(operands) > 1):
        axes = (dim if dim is not None else operands[1]).strip("()[]")
        axis, x = _ROW_OR_COLUMN.get(axes), operands[0] if operands else "x"
        if axes in _BOTH_AXES:
            return f'write {reduction}({x}, over="matrix"): one number per matrix'
        chosen = f"{axis}_{reduction}({x})" if axis else ""
        both = f"row_{reduction}(x) is one number per row, col_{reduction}(x) one per column"
        return f"write {chosen}: {both}" if chosen else both
    if name in CALLABLE_OPS:
        return f"{_PLAIN_NAME}{name}({', '.join(operands)})"
    plain = name.removesuffix("_like")
    return UNSUPPORTED.get(plain) or (
        NO_SUBSTITUTE if plain in UNSUPPORTED else did_you_mean(name, CALLABLE_OPS, NO_SUBSTITUTE)
    )


def keyword_hint(name: str, call: ast.Call) -> str:
    """Return a hint for a word that is called with `dim=` or `axis=`; "" for any other call."""
    if not any(keyword.arg in ("dim", "axis") for keyword in call.keywords):
        return ""
    return function_hint(name, [*map(ast.unparse, call.args)], call.keywords)


def _size_hint(tensor: str, index: str, names: Names) -> str:
    """Return how a rule asks for the size of an axis."""
    p = names.param
    if tensor == p and index in _SIZES:
        return f"write {_SIZES[index]}({p})"
    return f"sizes are those of the parameter: rows({p}), cols({p}), numel({p}), ndim({p})"


def _root(node: ast.expr) -> str:
    """Return the first name of `a.b[0].c`, or ""."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _in_parentheses(text: str) -> str:
    """Return the text of an operand in parentheses, unless it is a name, a number or a call."""
    with contextlib.suppress(SyntaxError):
        return _operand(ast.parse(text, mode="eval").body)
    return f"({text})"


def _without_needless_parentheses(text: str) -> str:
    return ast.unparse(ast.parse(text, mode="eval")).replace(" ** ", "**")


def _operand(node: ast.expr) -> str:
    text = ast.unparse(node)
    is_atom = isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript)
    return text if is_atom else f"({text})"
