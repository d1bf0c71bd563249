"""The one error of the spec language: where, what, and the way out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError
from optgen.ir.nodes import Place


class SpecError(Exception):
    """Something in a spec file that is not the language.

    Prints as `file:line:column: message`, the source line, a caret under the column, and a hint.
    """

    def __init__(self, place: Place, message: str, hint: str = "", source: str = "") -> None:
        super().__init__(message)
        self.place = place
        self.message = message
        self.hint = hint
        self.source = source

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.message}"]
        text = self.source.split("\n")  # as Python counts lines: a form feed ends none
        if 1 <= self.place.line <= len(text) and text[self.place.line - 1].strip():
            line = text[self.place.line - 1]
            before = line[: self.place.column - 1].ljust(self.place.column - 1)
            blank = "".join(c if c == "\t" else " " for c in before)
            lines += [f"    {line}", f"    {blank}^"]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: of the reader's own calls nobody learns anything."""
        return f"{type(self).__name__}: {self}".split("\n")


@contextlib.contextmanager
def shown_in(algorithm: Algorithm) -> Iterator[None]:
    """What a pass finds wrong with a rule becomes the error of the spec it stands in."""
    try:
        yield
    except RuleError as error:
        source = algorithm.source
        raise SpecError(error.place, error.message, error.hint, source) from None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint that names the closest known name, or `otherwise` where none is close.

    Close is what one slip in three letters makes of a name, or of each word in it.
    """
    slips = {other: _slips(name, other) for other in known if _is_close(name, other)}
    close = min(slips, key=lambda o: (slips[o], not name.startswith(o)), default="")
    return f"did you mean `{close}`?" if close else otherwise


def _is_close(name: str, other: str) -> bool:
    words, others = name.split("_"), other.split("_")
    if len(words) != len(others):
        words, others = [name], [other]
    pairs = zip(words, others, strict=True)
    return all(_slips(word, its) <= len(word) // 3 for word, its in pairs)


def _slips(name: str, other: str) -> int:
    """Count the letters left out, put in, or taken for others, and neighbours that changed places.

    Capitals are no slip: of names that differ in nothing else the first is the closest.
    """
    name, other = name.lower(), other.lower()
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(name):
        row = [i + 1]
        for j, its in enumerate(other):
            best = min(row[j] + 1, last[j + 1] + 1, last[j] + (letter != its))
            if i and j and letter == other[j - 1] and name[i - 1] == its:
                best = min(best, before[j - 1] + 1)
            row.append(best)
        before, last = last, row
    return last[-1]
