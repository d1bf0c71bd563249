"""The one error of the spec language: where, what, and the way out; and the one that is ours."""

from __future__ import annotations

import ast
import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator

from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError
from optgen.ir.nodes import NOWHERE, Assign, Call, If, Linear, Place, Ref
from optgen.spec.forbidden_characters import printable

_LONGEST = 160
"""The most characters of a line or of a cause that are shown."""


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
        lines = [f"{self.place}: {_shortened(self.message)}"]
        text = self.source.split("\n")  # as Python counts lines: a form feed ends none
        if 1 <= self.place.line <= len(text) and text[self.place.line - 1].strip():
            lines += _marked(text[self.place.line - 1], self.place.column)
        if self.hint:
            lines.append(f"  hint: {_shortened(self.hint)}")
        return printable("\n".join(lines))

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: of the reader's own calls nobody learns anything."""
        return f"{type(self).__name__}: {self}".split("\n")


def _shortened(text: str) -> str:
    """A text that may quote a long line, without its middle."""
    return f"{text[:_LONGEST]} … {text[-_LONGEST:]}" if len(text) > 3 * _LONGEST else text


def _marked(line: str, column: int) -> list[str]:
    """A line and a caret under a column; of a long line, what stands around it."""
    start = max(0, column - _LONGEST) if len(line) > _LONGEST else 0
    line, column = line[start : start + 2 * _LONGEST].replace("\f", " "), column - start
    before = line[: column - 1].ljust(column - 1)
    blank = "".join(c if c == "\t" else " " for c in before)
    return [f"    {line}", f"    {blank}^"]


class InternalError(Exception):
    """A defect of optgen: reading, planning or printing a spec raised what is no SpecError.

    Prints in one line, with the place in the spec where it happened. The cause is chained.
    """

    def __init__(self, place: Place, cause: Exception) -> None:
        what = " ".join(f"{type(cause).__name__}: {cause}".split())[:_LONGEST]
        message = "optgen failed here: a defect of optgen, not of the spec; please report it"
        super().__init__(printable(f"{place}: {message} together with the spec ({what})"))
        self.place = place


PlaceOf = Callable[[ast.AST], Place]


@contextlib.contextmanager
def located_errors(first: Place, source: str, place_of: PlaceOf | None = None) -> Iterator[None]:
    """Turn what is no error of the language into one that has a place in the spec.

    Args:
        first: the place where nothing closer is known.
        source: the text of the spec.
        place_of: tells where a node of the syntax tree stands, while there is one.
    """
    try:
        yield
    except RuleError as error:
        raise SpecError(error.place, error.message, error.hint, source) from None
    except RecursionError as error:
        place = _nearest(error, first, place_of)
        message, hint = "an expression here is nested too deeply", "give parts of it names"
        raise SpecError(place, message, hint, source) from None
    except (SpecError, InternalError, OSError, MemoryError):
        raise  # a spec's, one that has its place already, and what is the machine's
    except Exception as error:
        raise InternalError(_nearest(error, first, place_of), error) from error


def spec_errors(algorithm: Algorithm) -> contextlib.AbstractContextManager[None]:
    """Turn errors that passes raise about a rule into errors of its spec."""
    return located_errors(algorithm.place, algorithm.source)


def _nearest(error: Exception, first: Place, place_of: PlaceOf | None) -> Place:
    """The place of the statement at hand when an error was raised, else of the expression.

    Every pass and printer has in a variable what it works on: the innermost that has a place.
    """
    found: list[Place] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            place = _place(value, place_of)
            if place is not None and place.file == first.file:
                if isinstance(value, Assign | If | ast.stmt):
                    found.append(place)
                elif not found:
                    first = place
    return found[-1] if found else first


def _place(value: object, place_of: PlaceOf | None) -> Place | None:
    if isinstance(value, Assign | If | Call | Ref | Linear):
        return value.place if value.place != NOWHERE else None
    if isinstance(value, ast.stmt | ast.expr) and place_of is not None:
        return place_of(value)
    return None


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
