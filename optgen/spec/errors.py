"""Define SpecError, for mistakes in a spec, and InternalError, for defects of optgen."""

from __future__ import annotations

import ast
import contextlib
import re
import signal
import sys
import threading
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import NOWHERE, Assign, Call, If, Linear, Place, Ref, RuleError

_MAX_LENGTH = 160
"""Characters of a source line or a cause that are shown; of a longer message, of each end."""


class SpecError(Exception):
    """A mistake in a spec file.

    Prints as `file:line:column: message`, the source line, a caret under the column, and a hint.
    """

    def __init__(self, place: Place, message: str, hint: str = "", source: str = "") -> None:
        super().__init__(message)
        self.place = place
        self.message = message
        self.hint = hint
        self.source = source

    def __str__(self) -> str:
        printed = [f"{self.place}: {_shortened(self.message)}"]
        lines = self.source.split("\n")  # not splitlines: to Python, a form feed ends no line
        if 1 <= self.place.line <= len(lines) and lines[self.place.line - 1].strip():
            printed += _with_caret(lines[self.place.line - 1], self.place.column)
        if self.hint:
            printed.append(f"  hint: {_shortened(self.hint)}")
        return printable("\n".join(printed))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: the error without optgen's own calls."""
        return f"{type(self).__name__}: {self}".split("\n")


def _without_frames(show: Callable[..., None]) -> Callable[..., None]:
    """Return a hook for uncaught exceptions that shows a SpecError as a notebook does.

    The frames of a traceback are those of optgen, and the mistake is at a place in the spec.
    """

    def show_exception(
        kind: type[BaseException], error: BaseException, traceback_: TracebackType | None
    ) -> None:
        if isinstance(error, SpecError):
            print("\n".join(error._render_traceback_()), file=sys.stderr)
        else:
            show(kind, error, traceback_)

    return show_exception


sys.excepthook = _without_frames(sys.excepthook)


def _shortened(text: str) -> str:
    """Return a text; leave the middle out if it is long, as a message that quotes a long line."""
    return f"{text[:_MAX_LENGTH]} … {text[-_MAX_LENGTH:]}" if len(text) > 3 * _MAX_LENGTH else text


def _with_caret(line: str, column: int) -> list[str]:
    """Return a line, or the part of a long line around a column, and a caret under the column."""
    start = max(0, column - _MAX_LENGTH) if len(line) > _MAX_LENGTH else 0
    line, column = line[start : start + 2 * _MAX_LENGTH].replace("\f", " "), column - start
    before = line[: column - 1].ljust(column - 1)
    blank = "".join(c if c == "\t" else " " for c in before)
    return [f"    {line}", f"    {blank}^"]


class InternalError(Exception):
    """A defect of optgen: reading, planning or printing a spec raised an unexpected exception.

    Prints as one line, with the place in the spec where it happened. The cause is chained.
    """

    def __init__(self, place: Place, cause: Exception) -> None:
        summary = " ".join(f"{type(cause).__name__}: {cause}".split())[:_MAX_LENGTH]
        message = "optgen failed here: a defect of optgen, not of the spec; please report it"
        super().__init__(printable(f"{place}: {message} together with the spec ({summary})"))
        self.place = place


PlaceOf = Callable[[ast.AST], Place]


@contextlib.contextmanager
def located_errors(fallback: Place, source: str, place_of: PlaceOf | None = None) -> Iterator[None]:
    """Turn any exception into a SpecError or an InternalError with a place in the spec.

    Args:
        fallback: the place to report if no place closer to the error is known.
        source: the text of the spec.
        place_of: returns the place of a node of the syntax tree; None if there is no tree.
    """
    try:
        with limited_time():
            yield
    except RuleError as error:
        raise SpecError(error.place, error.message, error.hint, source) from None
    except TooSlowError as error:
        message = f"the compiler needs more than {MAX_SECONDS} seconds, and stopped here"
        hint = "is it one algorithm? a spec with fewer names, terms and branches takes less time"
        place = _nearest(error, fallback, place_of)
        raise SpecError(place, message, hint, source) from None
    except RecursionError as error:
        place = _nearest(error, fallback, place_of)
        message, hint = "an expression here is nested too deeply", "give parts of it names"
        raise SpecError(place, message, hint, source) from None
    except (SpecError, InternalError, OSError, MemoryError):
        raise  # the first two have a place; the machine, not the spec, causes the others
    except Exception as error:
        raise InternalError(_nearest(error, fallback, place_of), error) from error


def spec_errors(algorithm: Algorithm) -> contextlib.AbstractContextManager[None]:
    """Turn exceptions that passes raise about a rule into a SpecError or an InternalError."""
    return located_errors(algorithm.place, algorithm.source)


def _nearest(error: Exception, fallback: Place, place_of: PlaceOf | None) -> Place:
    """Return the place of the innermost statement, or else expression, that an error comes from.

    Every pass and printer holds the node it works on in a local variable, so the nodes are found in
    the frames of the traceback. Return `fallback` if no frame has a node with a place.
    """
    statements: list[Place] = []
    expression = fallback
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            place = _place_of_node(value, place_of)
            if place is not None and place.file == fallback.file:
                if isinstance(value, Assign | If | ast.stmt):
                    statements.append(place)
                elif not statements:
                    expression = place
    return statements[-1] if statements else expression


def _place_of_node(value: object, place_of: PlaceOf | None) -> Place | None:
    """Return the place of a node of the IR or of the syntax tree; None for anything else."""
    if isinstance(value, Assign | If | Call | Ref | Linear):
        return value.place if value.place != NOWHERE else None
    if isinstance(value, ast.stmt | ast.expr) and place_of is not None:
        return place_of(value)
    return None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint that names the closest known name, or `otherwise` if none is close."""
    distances = {other: _edit_distance(name, other) for other in known if _is_close(name, other)}
    closest = min(distances, key=lambda o: (distances[o], not name.startswith(o)), default="")
    return f"did you mean `{closest}`?" if closest else otherwise


def _is_close(name: str, other: str) -> bool:
    """Tell whether at most one letter in three differs in each part between underscores."""
    words, others = name.split("_"), other.split("_")
    if len(words) != len(others):
        words, others = [name], [other]
    pairs = list(zip(words, others, strict=True))
    if any(abs(len(a) - len(b)) > len(a) // 3 for a, b in pairs):
        return False
    return all(_edit_distance(a, b) <= len(a) // 3 for a, b in pairs)


def _edit_distance(name: str, other: str) -> int:
    """Return the edit distance of two names, without regard to case.

    A swap of two neighbouring letters is one edit.
    """
    name, other = name.lower(), other.lower()
    row_before_last: list[int] = []
    last_row = list(range(len(other) + 1))
    for i, letter in enumerate(name):
        row = [i + 1]
        for j, other_letter in enumerate(other):
            best = min(row[j] + 1, last_row[j + 1] + 1, last_row[j] + (letter != other_letter))
            if i and j and letter == other[j - 1] and name[i - 1] == other_letter:
                best = min(best, row_before_last[j - 1] + 1)
            row.append(best)
        row_before_last, last_row = last_row, row
    return last_row[-1]


MAX_SECONDS = 20
"""Seconds of CPU time for reading a spec, and again for generating its files.

The largest rule of the catalogue takes two. Sizes are limited too, but some passes take much more
than linear time.
"""

_TIMER = getattr(signal, "ITIMER_VIRTUAL", 1)


class TooSlowError(Exception):
    """The compiler took too long for a spec."""


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    """Raise a TooSlowError when this thread has computed for `MAX_SECONDS`.

    Only the main thread of a process can be interrupted; in any other, there is no limit.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer") or any(signal.getitimer(_TIMER)):
        yield  # inside another limit, that one holds
        return
    end = time.thread_time() + MAX_SECONDS

    def check(number: int, frame: FrameType | None) -> None:
        if time.thread_time() > end:
            raise TooSlowError

    handler_before = signal.signal(signal.SIGVTALRM, check)
    signal.setitimer(_TIMER, 1, 1)
    try:
        yield
    finally:
        signal.setitimer(_TIMER, 0)
        signal.signal(signal.SIGVTALRM, handler_before)


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
