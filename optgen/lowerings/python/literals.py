"""Python literals for what a spec holds: values, messages, docstrings, comments.

Nothing that a spec holds reaches a generated Python file, Triton's among them, but through here.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Iterator, Mapping

_LONGEST = 72  # characters of one piece of a message, so that lines stay below 100


def literal(value: object) -> str:
    """Return a value as a person writes it in Python: 1e-3 and 0.9."""
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    if not isinstance(value, float):
        return repr(value)
    mantissa, _, exponent = f"{value:e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    short = f"{mantissa}e{int(exponent)}"
    few_digits = len(mantissa.lstrip("-")) == 1 and float(short) == value
    return short if few_digits and int(exponent) not in range(-1, 6) and value else repr(value)


def exact_literal(value: object) -> str:
    """Return a value as Python, and Triton, reads it back: an infinite number too."""
    infinite = isinstance(value, float) and not math.isfinite(value)
    return f'float("{value}")' if infinite else repr(value)


def comment(text: str) -> str:
    """Return a text as a comment, which is one line."""
    return f"# {one_line(text)}"


def one_line(text: str) -> str:
    """Return a text without anything that Python, C++ or a reader takes for the end of a line."""
    return re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)


def docstring(lines: Iterable[str]) -> str:
    """Return lines as a docstring, the closing quotes on a line of their own."""
    text = "\n".join([*lines, "    "])
    if '"""' not in text:
        return f'r"""{text}"""'
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""{escaped}"""'


def message(text: str, values: Mapping[str, str]) -> str:
    """Return a message as one string or, a long one, as several beside one another.

    Args:
        text: a format string, whose fields are names.
        values: what is printed for a field: an expression; without one, the field's own name is it.
    """
    return " ".join(_quoted(piece) for piece in _pieces(_parts(text, values)))


def filled(text: str, texts: Mapping[str, str]) -> str:
    """Return a format string with the text of some fields in their place."""
    parts = []
    for before, name, _, _ in string.Formatter().parse(text):
        parts.append(_doubled(before))
        if name is not None:
            parts.append(_doubled(texts[name]) if name in texts else f"{{{name}}}")
    return "".join(parts)


def shown(text: str, texts: Mapping[str, str]) -> str:
    """Return a format string as a reader sees it: braces once, some fields replaced by a text."""
    parts = []
    for before, name, _, _ in string.Formatter().parse(text):
        parts += [before] if name is None else [before, texts.get(name, f"{{{name}}}")]
    return "".join(parts)


Part = tuple[str, bool]
"""A piece of a text as it is, or (True) an expression whose value is printed."""


def _parts(text: str, values: Mapping[str, str]) -> Iterator[Part]:
    """Words with the space behind them, and expressions."""
    for before, name, _, _ in string.Formatter().parse(text):
        yield from ((word, False) for word in re.findall("[^ ]* |[^ ]+", before))
        if name is not None:
            yield values.get(name, name), True


def _pieces(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Parts that fit one line together; only behind a space does a line end."""
    piece: list[Part] = []
    word: list[Part] = []
    for part in parts:
        word.append(part)
        if not part[1] and part[0].endswith(" "):
            if piece and _width(piece) + _width(word) > _LONGEST + 1:
                yield piece
                piece = []
            piece, word = piece + word, []
    if word and piece and _width(piece) + _width(word) > _LONGEST:
        yield piece
        piece = []
    yield piece + word


def _width(parts: Iterable[Part]) -> int:
    return sum(len(text) + 2 * is_value for text, is_value in parts)


def _quoted(piece: Iterable[Part]) -> str:
    parts = list(piece)
    if not any(is_value for _, is_value in parts):
        return repr("".join(text for text, _ in parts))
    body = "".join(f"{{{text}}}" if is_value else _doubled(text) for text, is_value in parts)
    return f"f{body!r}"


def _doubled(text: str) -> str:
    """A text whose braces are braces in a format string."""
    return text.replace("{", "{{").replace("}", "}}")
