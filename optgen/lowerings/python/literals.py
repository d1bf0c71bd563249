"""Print values, messages, docstrings and comments of a spec as Python literals.

Every text of a spec that goes into a generated Python file, also a Triton file, is escaped here.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from optgen.ir.algorithm import Hyper

Quote: TypeAlias = tuple[str, ...]
"""Lines of the rule, which comments above a statement quote."""
_PIECE_WIDTH = 72  # characters per piece of a message, which keeps lines below 100


def literal(value: object) -> str:
    """Return a value as people write it in Python: 1e-3, but 0.9."""
    if isinstance(value, tuple):
        items = ", ".join(map(literal, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    if not isinstance(value, float):
        return repr(value)
    mantissa, _, exponent = f"{value:e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    short = f"{mantissa}e{int(exponent)}"
    has_one_digit = len(mantissa.lstrip("-")) == 1 and float(short) == value
    is_far_from_1 = value != 0 and int(exponent) not in range(-1, 6)
    return short if has_one_digit and is_far_from_1 else repr(value)


def annotation(hyper: Hyper) -> str:
    """Return the type annotation of a hyperparameter."""
    if hyper.type == "flag":
        return "bool"
    if hyper.type == "choice":
        return "str | None" if None in hyper.choices else "str"
    number = "float" if hyper.tensor == "never" else "float | Tensor"
    numbers = [f"{number} | None" if hyper.may_be_none(i) else number for i in range(hyper.size)]
    return f"tuple[{', '.join(numbers)}]" if hyper.type == "tuple" else numbers[0]


def exact_literal(value: object) -> str:
    """Return a value as text that Python and Triton read back exactly, including inf and nan."""
    is_not_finite = isinstance(value, float) and not math.isfinite(value)
    return f'float("{value}")' if is_not_finite else repr(value)


def comment(text: str) -> str:
    """Return a text as a one-line comment."""
    return f"# {one_line(text)}"


def not_shown(quote: Quote, shown: Quote) -> Quote:
    """Return the lines of a quote that do not stand above it already."""
    return tuple(line for line in quote if line not in shown)


def shown_after(quote: Quote, shown: Quote) -> Quote:
    """Return the lines of the rule that stand above what comes after a statement.

    They are those of a run of statements: each statement shares a line with an earlier one.
    """
    new = not_shown(quote, shown)
    return (*shown, *new) if len(new) < len(quote) else quote


def one_line(text: str) -> str:
    """Return a text with all line breaks and control characters replaced by spaces."""
    return re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)


def docstring(lines: Iterable[str]) -> str:
    """Return lines as a docstring, with the closing quotes on their own line."""
    text = "\n".join([*lines, "    "])
    if '"""' not in text:
        return f'r"""{text}"""'
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""{escaped}"""'


def message(text: str, values: Mapping[str, str]) -> str:
    """Return a message as a string literal, or a long one as several adjacent literals.

    Args:
        text: Format string whose fields are names.
        values: Python expression for each field; by default the field's name.
    """
    return " ".join(_string_literal(piece) for piece in _pieces(_parts(text, values)))


def fill_fields(template: str, texts: Mapping[str, str]) -> str:
    """Return a format string with some fields replaced by a text."""
    parts = []
    for before, name, _, _ in string.Formatter().parse(template):
        parts.append(_double_braces(before))
        if name is not None:
            parts.append(_double_braces(texts[name]) if name in texts else f"{{{name}}}")
    return "".join(parts)


def as_shown(template: str, texts: Mapping[str, str]) -> str:
    """Return a format string as readers see it: with single braces, and some fields replaced."""
    parts = []
    for before, name, _, _ in string.Formatter().parse(template):
        parts += [before] if name is None else [before, texts.get(name, f"{{{name}}}")]
    return "".join(parts)


Part = tuple[str, bool]
"""A part of a message, and whether it is an expression whose value is printed."""


def _parts(text: str, values: Mapping[str, str]) -> Iterator[Part]:
    """Yield words, each with the space after it, and expressions."""
    for before, name, _, _ in string.Formatter().parse(text):
        yield from ((word, False) for word in re.findall("[^ ]* |[^ ]+", before))
        if name is not None:
            yield values.get(name, name), True


def _pieces(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield pieces: groups of parts that fit one line. A line ends only after a space."""
    piece: list[Part] = []
    word: list[Part] = []
    for text, is_value in parts:
        word.append((text, is_value))
        if not is_value and text.endswith(" "):
            if piece and _width(piece) + _width(word) > _PIECE_WIDTH + 1:
                yield piece
                piece = []
            piece, word = piece + word, []
    if word and piece and _width(piece) + _width(word) > _PIECE_WIDTH:
        yield piece
        piece = []
    yield piece + word


def _width(parts: Iterable[Part]) -> int:
    """Return the number of characters of parts; a value has two braces more."""
    return sum(len(text) + 2 if is_value else len(text) for text, is_value in parts)


def _string_literal(piece: Iterable[Part]) -> str:
    parts = list(piece)
    if not any(is_value for _, is_value in parts):
        return repr("".join(text for text, _ in parts))
    body = "".join(f"{{{text}}}" if is_value else _double_braces(text) for text, is_value in parts)
    return f"f{body!r}"


def _double_braces(text: str) -> str:
    """Return a text with its braces escaped for a format string."""
    return text.replace("{", "{{").replace("}", "}}")
