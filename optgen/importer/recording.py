"""The record of one run of a step: values in order, branches with their conditions, names."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

from optgen.importer.values import NEGATED, Value, constant, is_constant


class NotImportedError(Exception):
    """A class cannot be said as a spec.

    Attributes:
        reason: one sentence.
        place: the file and the line of the author's code; ("", 0) if there is none.
        hint: what to write instead, or "".
    """

    def __init__(self, reason: str, place: tuple[str, int] = ("", 0), hint: str = "") -> None:
        super().__init__(reason)
        if (record := current()) is not None:
            record.refusal = record.refusal or self  # the author's code may catch it
        self.reason = reason
        self.place = place
        self.hint = hint

    def __str__(self) -> str:
        file, line = self.place
        where = f"{file}:{line}: " if file else ""
        return f"{where}{self.reason}" + (f"\n  hint: {self.hint}" if self.hint else "")


@dataclass(frozen=True)
class Branch:
    """A condition that the run came to, and the side that it took."""

    condition: Value
    outcome: bool
    place: tuple[str, int] = ("", 0)


@dataclass
class Record:
    """One run. `forced` has the outcomes of conditions, by their keys.

    `is_silent`: a step is taken that another step's record begins after. Then conditions on the
    step count have their own outcomes.
    """

    forced: Mapping[str, bool]
    nonnegative: frozenset[str] = frozenset()
    is_silent: bool = False
    events: list[Value | Branch] = field(default_factory=list)
    decided: dict[str, bool] = field(default_factory=dict)
    answers: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """The side that each condition took, and the side that it takes unless it is forced."""

    lost: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Words whose numbers were used where nothing records, such as the length of a loop, with the
    author's lines."""

    reduces_all: bool = False
    """A reduction goes over all parameters."""

    totals: str = ""
    """Sums that begin with 0 go over "all" parameters, a "group", or "", this parameter alone."""

    has_totals: bool = False
    """There are such sums."""

    scheduled: frozenset[str] = frozenset()
    """The arguments whose numbers the groups have. Empty while the constructor runs."""

    kept: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Those that the step reads as the constructor got them, with the author's lines."""

    step: int = 0
    """The number of the step that runs; 0 while the constructor runs."""

    refusal: NotImportedError | None = None
    """The first refusal of this run."""

    renewed: set[str] = field(default_factory=set)
    """Those that the step reads in the groups."""

    def add(self, value: Value) -> Value:
        """Record a value at the author's line."""
        value.place = author_line()
        value.step = self.step
        self._check_age(value)
        self._note_origins(value)
        if not self.is_silent:
            self.events.append(value)
        return value

    def branch(self, condition: Value, outcome: bool) -> bool:
        """Record a condition, and return the side to take."""
        if condition.op == "constant":
            return outcome
        self._check_age(condition)
        self._note_origins(condition)
        truth, is_negated = self._canonical(condition)
        if truth.op.startswith("count@"):
            return outcome  # there is an element
        natural = outcome != is_negated
        if self.is_silent:
            taken = natural
            if "t" not in truth.atoms and not truth.reads_tensors:
                taken = self.decided.get(truth.key, self.forced.get(truth.key, natural))
                self.answers.setdefault(truth.key, (taken, natural))
            return taken != is_negated
        if truth.key not in self.decided:
            self.decided[truth.key] = self.forced.get(truth.key, natural)
            self.answers.setdefault(truth.key, (self.decided[truth.key], natural))
        taken = self.decided[truth.key]
        self.events.append(Branch(truth, taken, author_line()))
        return taken != is_negated

    def _note_origins(self, value: Value) -> None:
        """Note which arguments a value of the step reads as the constructor got them."""
        for name, step in sorted(value.origins):
            if step not in (0, self.step):
                raise StaleError()
            if not step and name in self.scheduled:
                self.kept.setdefault(name, author_line())
            elif step:
                self.renewed.add(name)
            if name in self.renewed and name in self.kept:
                raise ReadTwiceError(name, self.kept[name])

    def _check_age(self, value: Value) -> None:
        """Raise an error if a value is computed from one that an earlier step computed.

        A state's value does not come here: each step begins with a word for it.
        """
        for each in value.args:
            if each.step is None:
                self._check_age(each)
            elif each.step not in (0, self.step):
                raise StaleError()

    def equals_run_with(self, forced: Mapping[str, bool]) -> bool:
        """Tell if a run with these forced outcomes would be this one."""
        return all(
            forced.get(key, natural) == taken for key, (taken, natural) in self.answers.items()
        )

    def _canonical(self, condition: Value) -> tuple[Value, bool]:
        """Return a condition in the form that its other forms share, and if it is negated."""
        op, args = condition.op, condition.args
        if op in ("eq", "ne", "gt", "le") and is_constant(args[1], 0):
            if op in ("eq", "ne"):
                return args[0], op == "eq"
            if args[0].key in self.nonnegative:
                return args[0], op == "le"
        if op == "ne":
            return Value("eq", args), True
        if op in ("ge", "le"):
            return Value(NEGATED[op], args), True
        return condition, False


class KeptError(NotImportedError):
    """The step reads a number as the constructor got it, which no schedule changes."""

    def __init__(self, name: str, place: tuple[str, int]) -> None:
        super().__init__(
            f"the step reads the `{name}` that the constructor got, which a schedule of the "
            "group's number does not change",
            place,
            hint=f'read group["{name}"], or give the number an argument of its own',
        )
        self.name = name


class StaleError(NotImportedError):
    """The step reads a number that an earlier step kept in no state."""

    def __init__(self) -> None:
        super().__init__(
            "the step reads a number that an earlier step kept, and no state holds it",
            author_line(),
            hint='keep it in the state of the parameter, as in `self.state[p]["before"]`',
        )


class ReadTwiceError(KeptError):
    """The step reads a number both as the constructor got it and in the group."""


class ClassFailsError(NotImportedError):
    """The author's code raises an error where the import runs it."""


def complete(refusal: NotImportedError, cls: Any) -> None:
    """Give a refusal the class's step as its place, and a way out, if it has none."""
    step = inspect.unwrap(getattr(cls, "step", cls))
    if not refusal.place[0] and isinstance(step, FunctionType):
        refusal.place = step.__code__.co_filename, step.__code__.co_firstlineno
    if not refusal.hint and "hint:" not in refusal.reason:
        refusal.hint = "fix arguments by --set, or write the rule as a spec by hand"


def failed(error: Exception, when: str = "") -> NotImportedError:
    """Return an error of the author's code as a refusal at the author's line.

    `when`: words that say which part of an import met the error, or "".
    """
    if isinstance(error, AttributeError) and isinstance(getattr(error.obj, "value", None), Value):
        return NotImportedError(
            "a tensor that the group keeps, which an import reads as a number",
            _author_place(error),
            hint="keep it in the state of the parameter: `self.state[p]`",
        )
    if isinstance(error, AttributeError) and isinstance(error.obj, list):
        return ClassFailsError(
            f"the class takes no parameters: it reads `{error.name}` of its first argument",
            _author_place(error),
            hint="give it parameters; of a wrapper, import the inner class",
        )
    reason = f"the class fails here{when}: {type(error).__name__}: {error}"
    hint = (
        "the import gives the class a matrix or a vector in float64 on the CPU, and no closure; "
        "fix arguments by --set, or import an inner class"
    )
    return ClassFailsError(reason, _author_place(error), hint)


def defect(error: Exception, name: str) -> NotImportedError:
    """Return an error of our own code as a refusal that says so. `name` is the class's name."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return NotImportedError(
        f"a defect of optgen: the import of {name} ends in {type(error).__name__}: {error} "
        f"({Path(last.filename).name}:{last.lineno})",
        _author_place(error),
        hint="report it with the class",
    )


def _author_place(error: Exception) -> tuple[str, int]:
    """Return the last place of the author's code that an error came through; ("", 0) if none."""
    place = ("", 0)
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if is_author_file(file) and "/optgen/" not in file:
            place = file, line
    return place


_current: list[Record] = []
_packages: list[str] = []


def current() -> Record | None:
    """Return the record of the run in progress."""
    return _current[-1] if _current else None


def set_current(record: Record | None) -> None:
    """Set the record of the run in progress."""
    _current.clear()
    if record is not None:
        _current.append(record)


def is_author_file(file: str) -> bool:
    """Tell whether a file may hold the author's code: neither torch's inside nor ours."""
    if "/optgen/importer/" in file or file.startswith("<"):
        return False
    if "/torch/" in file:
        return "/torch/optim/" in file and not file.endswith("/torch/optim/optimizer.py")
    return True


def author_line() -> tuple[str, int]:
    """Return the file and the line of the author's code that runs now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_author_file(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)


def as_value(x: Any) -> Value:
    """Return the value of a recorded number, or a constant."""
    recorded = getattr(x, "value", None)
    if isinstance(recorded, Value):
        return recorded
    if x is None or isinstance(x, int | float | str):
        return constant(x)
    raise NotImportedError(
        f"a {type(x).__name__} in arithmetic",
        author_line(),
        hint="compute with numbers and whole tensors: write 0.0 and not [0.0]",
    )
