"""Numbers of several parameters: a list with one number for each parameter, and its reductions.

A run has one parameter. A list of tensors that is stacked has one tensor in it, but it is meant to
have one for each parameter. So what reduces a stack goes over all parameters.
"""

from __future__ import annotations

from optgen.importer.recording import NotImportedError, author_line
from optgen.importer.values import Value, apply, constant

STACKS = frozenset(["stack", "cat", "hstack", "concat"])


def one_for_each(value: Value) -> Value:
    """Return a list with a number for each parameter."""
    return Value("each", (value,))


def each_in(value: Value) -> Value | None:
    """Return the number that a value has for each parameter; None if it has none."""
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
