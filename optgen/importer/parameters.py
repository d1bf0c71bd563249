"""Numbers of several parameters: a list with one number for each parameter, and its reductions.

A run has one parameter. A list of tensors that is stacked has one tensor in it, but it is meant to
have one for each parameter. So what reduces a stack goes over all parameters. A number of the
parameter that is added to 0 may be the first part of a sum over the parameters: `total += x.sum()`.
The proof, which has several parameters in two groups, decides.
"""

from __future__ import annotations

from optgen.importer.recording import NotImportedError, Record, author_line
from optgen.importer.values import Value, apply, constant, is_constant

TOTALS = ("all", "group", "")
"""Sums that begin with 0 may go over all parameters, those of a group, or one parameter."""
STACKS = frozenset(["stack", "cat", "hstack", "concat"])


def one_for_each(value: Value) -> Value:
    """Return a list with a number for each parameter."""
    return Value("each", (value,))


def each_in(value: Value) -> Value | None:
    """Return the number that a value has for each parameter; None if it has none."""
    if "each" not in value.ops:
        return None
    if value.op == "each":
        return value.args[0]
    return next((found for a in value.args if (found := each_in(a)) is not None), None)


def over_all(word: str, value: Value) -> Value:
    """Return the reduction of a list with a number for each parameter.

    Raises:
        NotImportedError: the language has no word for it.
    """
    number = each_in(value)
    assert number is not None
    is_plain = value.op == "each"
    is_square = value.op == "pow" and value.args[0].op == "each" and value.args[1].constant == 2
    if number.op == "norm" and is_plain and word == "norm":
        return Value("norm@all", number.args)
    if number.op == "norm" and is_square and word == "sum":
        return Value("sum@all", (apply("pow", number.args[0], constant(2)),))
    if number.op == word and is_plain and word in ("sum", "max_abs"):
        return Value(f"{word}@all", number.args)
    raise NotImportedError(
        f"a {word} over several parameters, of {value.op} of {number.op}",
        author_line(),
        hint="add up sums, or sums of squares, or take the norm of norms",
    )


def begun(record: Record, a: Value, b: Value) -> Value | None:
    """Return the sum over parameters that begins with `0 + b` or `a + 0`; None if it is none."""
    if not (_is_zero(a) or _is_zero(b)):
        return None
    number = b if _is_zero(a) else a
    if number.op != "numel" and not (number.reads_tensors and is_of_elements(number)):
        return None
    made = total(number, record.totals or "all")
    record.has_totals |= made is not None
    if made is None or not record.totals:
        return None
    record.reduces_all = True
    return made


def _is_zero(value: Value) -> bool:
    """Tell if a value is 0, or a variable that has just become 0."""
    return is_constant(value.args[0] if value.op == "copy" else value, 0)


def total(value: Value, over: str) -> Value | None:
    """Return the sum of a parameter's number over all parameters; None if there is no word for it.

    `over`: "all" or "group". The number is a sum of elements, times and divided by other numbers.
    """
    op, args = value.op, value.args
    if op == "numel":
        return Value(f"count@{over}", reads_tensors=True)
    if op == "sum":
        return Value(f"sum@{over}", args)
    if op == "mean":
        size = Value("numel", (Value("atom", name="p"),))
        return Value(f"sum@{over}", (apply("div", args[0], size),))
    if op == "pow" and args[0].op == "norm" and is_constant(args[1], 2):
        return Value(f"sum@{over}", (apply("pow", args[0].args[0], constant(2)),))
    if op in ("add", "sub"):
        parts = [total(each, over) for each in args]
        return None if None in parts else apply(op, *(each for each in parts if each))
    if op in ("mul", "div"):
        number, other = args if is_of_elements(args[0]) else args[::-1]
        inner = total(number, over) if op == "mul" or number is args[0] else None
        if inner is not None and inner.op == f"sum@{over}" and not is_of_elements(other):
            return Value(inner.op, (apply(op, inner.args[0], other),))
    return None


def is_of_elements(value: Value) -> bool:
    """Tell if a number is computed from a sum over this parameter's elements."""
    return not value.ops.isdisjoint(("numel", "sum", "mean", "norm"))


def divided(total: Value, by: Value) -> Value | None:
    """Return the mean of a sum over parameters that is divided by the number of their elements."""
    word, _, over = total.op.partition("@")
    return Value(f"mean@{over}", total.args) if (word, by.op) == ("sum", f"count@{over}") else None
