"""Find characters that no spec may hold, describe them, and replace them in printed text.

Python, a C++ compiler and a terminal disagree on NUL, lone surrogates and most control characters.
Bidirectional controls make a line look different from what Python reads.
"""

from __future__ import annotations

import re
import unicodedata

_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""All controls but tab and newline, bidirectional controls, line separators, surrogates."""


def first_forbidden(text: str, allowed_characters: str = "") -> int | None:
    """Return the index of the first forbidden character that is not in `allowed`, or None."""
    indices = (match.start() for match in _FORBIDDEN.finditer(text))
    return next((index for index in indices if text[index] not in allowed_characters), None)


def describe_character(character: str) -> str:
    """Return the code point of a character, and its Unicode name if it has one."""
    if "\ud800" <= character <= "\udfff":
        name = "half of a surrogate pair"
    else:
        name = unicodedata.name(character, "a control character").lower()
    return f"U+{ord(character):04X} ({name})"


def printable(text: str) -> str:
    """Return a text that is safe in a terminal: U+FFFD in place of each forbidden character."""
    return _FORBIDDEN.sub("\ufffd", text)
