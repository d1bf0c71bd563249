"""Derive descriptive names for values: the table of what passes call each kind of value.

    scalar_name            1 - beta2**step, in the scalar program      bias_correction2
    coefficient_names      the factor of g in p - lr * g               step_size, grad_step_size
    inner_scalar_names     2 in sqrt(2 * m)                            m_scale
    reduced_coefficient    a coefficient computed from a reduction     step_size, decay_factor
    LINE_FACTORS           rows and columns that multiply a tensor     row_factor, col_factor
    POWERS                 1 / sqrt(row_var)                           row_var_rsqrt
    description            grad**2, in the name of its sum             grad_sq
    matrix_word_name       grad @ transpose(grad)                      grad_row_gram
    matrix_operand_name    m / sqrt(v), an operand of a matrix word    m_quotient
    candidate_names        a condition, in kernels                     has_growth_rate

A pass appends a number to a name that is in use: see `ir/reserved_in_python.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import count

from optgen.ir.algorithm import Hyper
from optgen.ir.kinds import Axes, Kind
from optgen.ir.nodes import Call, Const, Expr, Linear, Ref, Term, only_factor, refs
from optgen.ir.ops import OPS

LINE_FACTORS = {Axes.ROW: "row_factor", Axes.COLUMN: "col_factor", Axes.MATRIX: "matrix_factor"}
POWERS = {Fraction(1, 2): "sqrt", Fraction(-1, 2): "rsqrt", Fraction(-1): "inverse"}
_OPERATORS = {"/": "quotient", "*": "product", "+": "sum", "-": "difference", "**": "power"}


def scalar_name(expr: Expr) -> str:
    """Return a name derived from a scalar, or "" if the caller should choose the name."""
    match expr:
        case Call("-", (Const(1), Call("**", (Ref(base), Ref("step"))))):
            digits = base.lstrip("abcdefghijklmnopqrstuvwxyz_")
            return f"bias_correction{digits}"
        case Call("-", (Const(1), Ref(name))):
            return f"one_minus_{name}"
        case Call("floor", (Call("%", (Ref(name), Const(16777216))),)):  # 24 bits of a seed
            return f"{name}_key"
        case Call("machine_eps", _):
            return "machine_eps"
        case Call("**", (Ref(name), Const(2))):
            return f"{name}_sq"
        case Call("sqrt", (inner,)):
            inside = inner.name if isinstance(inner, Ref) else scalar_name(inner)
            return f"{inside}_sqrt" if inside else ""
        case Call("/", (Const(1), Call(word, (Ref(),)))) if OPS[word].category == "property":
            return f"one_over_{word}"
        case Call("/", (Const(1), denom)):
            inside = denom.name if isinstance(denom, Ref) else scalar_name(denom)
            return f"inverse_{inside}" if inside else ""
    return ""


def coefficient_names(target: str, term: Term) -> tuple[str, ...]:
    """Suggest names for a coefficient from its place: a decay, a step size, a weight."""
    names = [f.name for f in term.factors if isinstance(f, Ref)]
    if target in names:
        return ("decay_factor",) if target == "param" else (f"{target}_decay",)
    if target == "param":
        return ("step_size", f"{names[0]}_step_size") if names else ("step_size", "param_offset")
    return (f"{names[0]}_weight",) if names else (f"{target}_offset",)


def inner_scalar_names(term: Term) -> tuple[str, ...]:
    """Suggest names for a scalar inside an operand, from what it scales or is computed from."""
    names = [f.name for f in term.factors if isinstance(f, Ref)]
    names += [f"scaled_{r.name}" for r in refs(term.coefficient)]
    return (f"{names[0]}_scale",) if term.factors and names else (*names[:1], "scalar")


def reduced_coefficient(target: str, factors: tuple[Expr, ...]) -> str:
    """Return a name for a coefficient that is known after a reduction, of the target's value."""
    if target != "param":
        return f"{target}_scale"
    is_of_param = any(isinstance(factor, Ref) and factor.name == target for factor in factors)
    return "decay_factor" if is_of_param else "step_size"


def description(expr: Expr) -> str:
    """Return a part of a name that describes an expression: grad_sq, row_var, update."""
    match expr:
        case Ref(name):
            return name
        case Call("*", (a, b)) if a == b:
            return f"{description(a)}_sq"
        case Call("**", (a, Const(2))):
            return f"{description(a)}_sq"
        case Call(word, _) if word.isidentifier():
            return word
        case Call("/", (a, _)):
            return f"{description(a)}_quotient"
    return next((ref.name for ref in refs(expr)), "value")


def matrix_word_name(word: Call, kinds: Mapping[str, Kind]) -> str:
    """Return a name for the result of a matrix word: its main tensor's name and a suffix.

    The main tensor is the first one of the parameter's shape, or else the first. `kinds` has the
    kinds of the rule's own variables.
    """
    names = [
        ref.name for ref in refs(word) if ref.name not in kinds or not kinds[ref.name].is_scalar
    ]
    like_param = [name for name in names if name in kinds and kinds[name].axes is Axes.TENSOR]
    main_name = next(iter((*like_param, *names)), "matrix")
    match word:
        case Call("@", (a, b)) if _is_transpose(b, a):
            return f"{main_name}_row_gram"
        case Call("@", (a, b)) if _is_transpose(a, b):
            return f"{main_name}_col_gram"
        case Call("@"):
            return f"{main_name}_product"
    return f"{main_name}_{word.op}"


def _is_transpose(expr: Expr, other: Expr) -> bool:
    """Tell whether an expression is the transpose of another."""
    match only_factor(expr):
        case Call("transpose", (operand,)):
            return only_factor(operand) == only_factor(other)
    return False


def matrix_operand_name(operand: Expr, tensor: str) -> str:
    """Return a name for an operand of a matrix word that is computed from a tensor."""
    match only_factor(operand):
        case Linear((_, _, *_)):
            suffix = "combination"
        case Linear((Term(divisors=(_, *_)),)):
            suffix = "quotient"
        case Linear((Term(factors=(_,)),)):
            suffix = "scaled"
        case Linear():
            suffix = "product"
        case Call(op):
            suffix = _OPERATORS.get(op, op if op.isidentifier() else "value")
        case _:
            suffix = "value"
    return f"{tensor}_{suffix}"


_ENGLISH = {
    "+": "plus",
    "-": "minus",
    "*": "times",
    "/": "over",
    "**": "to_the",
    "%": "mod",
    "<": "below",
    "<=": "at_most",
    ">": "above",
    ">=": "at_least",
    "==": "equals",
    "!=": "differs_from",
    "truth": "has",
    "is_none": "no",
    "neg": "minus",
}
"""Words for an op in a name."""
_MAX_NAME_LENGTH = 32  # characters


def candidate_names(*conditions: Expr) -> Iterator[str]:
    """Yield candidate names: each condition in words if short, then condition1, condition2, …"""
    for name in map(_in_words, conditions):
        if len(name) <= _MAX_NAME_LENGTH and name.isidentifier():
            yield name
    yield from (f"condition{n}" for n in count(1))


def _in_words(expr: Expr) -> str:
    """Return a condition in words, joined by underscores: `has_growth_rate`."""
    match expr:
        case Const(value):
            return str(value).replace("-", "minus_").replace(".", "_")
        case Ref(name):
            return name
        case Call("not", (Call("is_none", (a,)),)):
            return f"has_{_in_words(a)}"
        case Call(word, (a,)):
            return f"{_ENGLISH.get(word, word)}_{_in_words(a)}"
        case Call(word, args):
            return f"_{_ENGLISH.get(word, word)}_".join(map(_in_words, args))
    raise TypeError(f"not a condition: {expr!r}")


def is_rare(condition: Expr, hypers: Mapping[str, Hyper]) -> bool:
    """Tell whether a condition is mostly false.

    Such a condition is a flag that is off by default, `fresh(state)`, or an `and` with such an
    operand.
    """
    match condition:
        case Ref(name) | Call("truth", (Ref(name),)):
            hyper = hypers.get(name)
            return hyper is not None and hyper.type == "flag" and not hyper.default
        case Call("and", (a, b)):
            return is_rare(a, hypers) or is_rare(b, hypers)
    return isinstance(condition, Call) and condition.op == "fresh"
