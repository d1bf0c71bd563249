"""Ask SymPy about scalar expressions. No other module imports SymPy."""

from __future__ import annotations

import math

import sympy

from optgen.ir.nodes import Call, Const, Expr, Ref

_FUNCTIONS = {
    "sqrt": sympy.sqrt,
    "exp": sympy.exp,
    "log": sympy.log,
    "abs": sympy.Abs,
    "sign": sympy.sign,
    "maximum": sympy.Max,
    "minimum": sympy.Min,
}


def to_sympy(expr: Expr) -> sympy.Expr:
    """Convert a scalar expression to SymPy.

    An expression that SymPy cannot express becomes a symbol, which is real if it stands for a name
    or a call. Numbers become exact fractions of the decimal text in the spec.
    """
    match expr:
        case Const(bool() | str() | None as value):
            return sympy.Symbol(repr(value))
        case Const(int() | float() as value) if not math.isfinite(value):
            return sympy.Symbol(repr(value))
        case Const(value):
            return sympy.Rational(str(value))
        case Ref(name, version):
            return sympy.Symbol(f"{name}.{version}", real=True)
        case Call("neg", (a,)):
            return -to_sympy(a)
        case Call("+", (a, b)):
            return to_sympy(a) + to_sympy(b)
        case Call("-", (a, b)):
            return to_sympy(a) - to_sympy(b)
        case Call("*", (a, b)):
            return to_sympy(a) * to_sympy(b)
        case Call("/" | "divide", (a, b)):
            return to_sympy(a) / to_sympy(b)
        case Call("**" | "power", (a, b)):
            return to_sympy(a) ** to_sympy(b)
        case Call(word, args) if word in _FUNCTIONS:
            return _FUNCTIONS[word](*(to_sympy(a) for a in args))
        case _:
            return sympy.Symbol(repr(expr), real=True)


def sums_to_one(a: Expr, b: Expr) -> bool:
    """Tell whether two coefficients add up to 1 for all values of their names."""
    difference = to_sympy(a) + to_sympy(b) - 1
    return not _differs_somewhere(difference) and bool(sympy.simplify(difference) == 0)


def _differs_somewhere(expr: sympy.Expr) -> bool:
    """Tell whether an expression is clearly not 0 at one point, which is faster than to simplify.

    False proves nothing: the point may be a pole, or the expression may be 0 there only.
    """
    symbols = sorted(expr.free_symbols, key=str)
    # Multiples of 0.618 give each symbol another value between 0 and 1.
    point = {symbol: (0.618 * number) % 1 for number, symbol in enumerate(symbols, 1)}
    value = expr.evalf(subs=point)
    return bool(value.is_number and value.is_finite and abs(value) > 1e-3)  # far above rounding
