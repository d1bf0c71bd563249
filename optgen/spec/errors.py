"""The one error of the spec language: where, what, and the way out."""

from __future__ import annotations

import contextlib
import difflib
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


@contextlib.contextmanager
def shown_in(algorithm: Algorithm) -> Iterator[None]:
    """What a pass finds wrong with a rule becomes the error of the spec it stands in."""
    try:
        yield
    except RuleError as error:
        source = algorithm.source
        raise SpecError(error.place, error.message, error.hint, source) from None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint naming the closest known name, or `otherwise` where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else otherwise
