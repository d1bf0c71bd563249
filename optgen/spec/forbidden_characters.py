"""Characters that no spec may hold, and how a line that holds one is shown.

NUL, lone surrogates and most control characters are not the same thing to Python, to a C++ compiler
and to a terminal; bidirectional controls make a line read otherwise than it is.
"""

from __future__ import annotations

import re
import unicodedata

_REFUSED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""All controls but tab and newline, bidirectional controls, line separators, surrogates."""


def first_refused(text: str, allowed: str = "") -> int | None:
    """Return where the first character stands that a spec may not hold, or None."""
    places = (match.start() for match in _REFUSED.finditer(text))
    return next((at for at in places if text[at] not in allowed), None)


def described(character: str) -> str:
    """Return the number of a character and its name, as far as it has one."""
    if "\ud800" <= character <= "\udfff":
        name = "half of a surrogate pair"
    else:
        name = unicodedata.name(character, "a control character").lower()
    return f"U+{ord(character):04X} ({name})"


def printable(text: str) -> str:
    """Return a text as a terminal may show it: one mark for each character that is refused."""
    return _REFUSED.sub("\ufffd", text)
