"""Run a step until all sides of its branches are seen, and merge the runs into one rule.

Each branch of a run is turned once, with the earlier ones as they were. So the number of runs grows
with the branches and not with their combinations; the proof compares combinations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from optgen.importer.recording import NotImportedError, Record, failed
from optgen.importer.run import Path, Run, Subject
from optgen.importer.statements import (
    Assign,
    Choice,
    Event,
    HazardError,
    If,
    Item,
    assigned,
    events_of,
    names_read,
)
from optgen.importer.values import Value, text

MAX_RUNS = 200


class RefusedRunError(Exception):
    """A class refuses a run.

    Attributes:
        error: the error that it raises.
        record: what the run asked.
        is_constructed: the constructor accepted its arguments, and a step raised the error.
    """

    def __init__(self, error: Exception, record: Record, is_constructed: bool) -> None:
        super().__init__("the class refuses a run")
        self.error = error
        self.record = record
        self.is_constructed = is_constructed


@dataclass
class Explorer:
    """Runs a class with forced outcomes, and keeps the runs."""

    subject: Subject
    shape: tuple[int, ...]
    is_fresh: bool
    nonnegative: frozenset[str] = frozenset()
    paths: list[tuple[Record, Path, list[Event]]] = field(default_factory=list)
    conditions: dict[str, Value] = field(default_factory=dict)
    sites: dict[tuple[str, int, int], str] = field(default_factory=dict)
    inputs: set[tuple[str, int, int]] = field(default_factory=set)
    """The sites whose values keep off the gradient's name, which is read later."""
    has_new_sites: bool = False
    computed: set[str] = field(default_factory=set)
    owned: frozenset[str] = frozenset()
    """The variables that `computed` had when a pass began, so all runs of a pass are alike."""
    refused: list[RefusedRunError] = field(default_factory=list)
    """The runs that the class refused, with errors of its own."""

    def run(self, forced: Mapping[str, bool]) -> tuple[Path, list[Event]]:
        """Run with forced outcomes, or return the earlier run with them."""
        for record, path, events in self.paths:
            if record.equals_run_with(forced):
                return path, events
        for refused in self.refused:
            if refused.record.equals_run_with(forced):
                raise refused
        if len(self.paths) >= MAX_RUNS:
            choices = [e for e in self.paths[-1][2] if isinstance(e, Choice)]
            place = choices[-1].place if choices else ("", 0)
            raise NotImportedError(f"more than {MAX_RUNS} paths", place, "--set some arguments")
        record = Record(forced, self.nonnegative, totals=self.subject.totals)
        run = Run(self.subject, record, self.shape, self.owned, computed=self.computed)
        try:
            path = run.take(is_fresh=self.is_fresh)
        except NotImportedError:
            raise
        except Exception as error:
            self.refused.append(RefusedRunError(error, record, run.is_constructed))
            raise self.refused[-1] from error
        self.conditions |= {
            event.condition.key: event.condition
            for event in path.events
            if not isinstance(event, Value)
        }
        self._find_varying(path)
        self.paths.append((record, path, self._events(path)))
        return self.paths[-1][1:]

    def _find_varying(self, path: Path) -> None:
        """Let variables that are other numbers in other runs, `ratio = 1.0`, be computed ones."""
        for _, other, _ in self.paths[:1]:
            for variable in path.numbers.keys() & other.numbers.keys():
                if path.numbers[variable] != other.numbers[variable]:
                    self.computed.add(variable[1])

    def _events(self, path: Path) -> list[Event]:
        """Return a run's events, with names for values that are read after their own name's end."""
        place = "", 0
        for _ in range(50):
            self._name_sites(path)
            try:
                return events_of(path.events)
            except HazardError as error:
                own, is_input = error.value, error.value.op == "atom"
                place = error.later.place
                if is_input and own.name == "g" and error.later.op != "copy":
                    own = error.later  # so `g` stays the gradient in all runs
                elif is_input:
                    own.name = f"{own.name}_before"
                    continue
                site = next(site for site, v in _sites(path) if v is own)
                self.sites[site] = self._unused_name(f"{own.name or 'x'}_{len(self.sites) + 1}")
                self.inputs |= {site} if is_input else set()
                self.has_new_sites = True
        raise NotImportedError("values are overwritten before they are read", place)

    def _unused_name(self, name: str) -> str:
        """Return a name that neither the author nor a rule has for something else."""
        words = {a.word for a in self.subject.arguments}
        words |= {self.subject.state_word(key) for key in self.subject.state_keys}
        words |= {variable for _, path, _ in self.paths for variable in path.bindings}
        while name in words:
            name += "_t"
        return name

    def _name_sites(self, path: Path) -> None:
        """Give the values of known sites names of their own; copies have the old names."""
        named = [(site, v) for site, v in _sites(path) if site in self.sites]
        for site, value in named:
            if value.name == self.sites[site]:
                continue
            if value.name is not None and site not in self.inputs:
                at = next(n for n, e in enumerate(path.events) if e is value) + 1
                copy = Value("copy", (value,), name=value.name, place=value.place)
                path.events.insert(at, copy)
            value.name = self.sites[site]

    def _path_of(self, events: Sequence[Event]) -> Path:
        """Return the run that has these events."""
        return next(path for _, path, each in self.paths if each is events)

    def first_run(self) -> list[Event]:
        """Return the events of the run without forced outcomes."""
        try:
            return self.run({})[1]
        except RefusedRunError as refused:
            raise failed(refused.error) from refused.error

    def code(self) -> list[Item]:
        """Return the merged code of all paths."""
        for _ in range(20):
            self.paths.clear()
            num_computed = len(self.computed)
            self.owned = frozenset(self.computed)
            events = self.first_run()
            self.has_new_sites = False
            items = self._structure(events, {}, 0, len(events), frozenset())[0]
            if not self.has_new_sites and len(self.computed) == num_computed:
                break
            # else all runs take place again, with the names that one of them needs
        befores = sorted(n for n in names_read(items) if n.endswith("_before"))
        return [*(Assign(n, n.removesuffix("_before")) for n in befores), *items]

    def _structure(
        self,
        events: Sequence[Event],
        before: Mapping[str, bool],
        start: int,
        stop: int,
        known: frozenset[str],
    ) -> tuple[list[Item], list[tuple[int, int]]]:
        """Return the code of a part of a run's events, with the part that each item covers."""
        items: list[Item] = []
        spans: list[tuple[int, int]] = []
        for i in range(stop - 1, start - 1, -1):
            event = events[i]
            if not isinstance(event, Choice):
                items.insert(0, event)
                spans.insert(0, (i, i + 1))
                continue
            if event.key in known:
                continue
            self._turn(events, before, i, stop, known, items, spans)
        return items, spans

    def _other_side(
        self, choice: Choice, forced: Mapping[str, bool]
    ) -> tuple[list[Event], Mapping[str, bool]] | None:
        """Return the events of the run that takes a branch's other side, and what was forced.

        A constructor may refuse this side alone: `if nesterov and momentum <= 0: raise`. If no run
        has taken the side, it is taken with the other side of the condition that was asked last.

        Returns:
            None if the class refuses the side.

        Raises:
            NotImportedError: this run does not come to the branch.
        """
        while True:
            try:
                other = self.run(forced)[1]
                break
            except RefusedRunError as refused:
                last = next(reversed(refused.record.answers), choice.key)
                if refused.is_constructed or last in forced or self._has_taken(choice):
                    return None
                forced = {**forced, last: not refused.record.decided[last]}
        if not _parts(other, choice.key):
            raise NotImportedError(
                f"a run comes to `{choice.condition}`, and another one with the same earlier "
                "answers does not",
                choice.place,
                hint="let the step depend on arguments, states and the step count only",
            )
        return other, forced

    def _has_taken(self, choice: Choice) -> bool:
        """Tell if a run has taken a branch's other side."""
        return any(
            p.decided.get(choice.key) is not choice.outcome
            for _, p, _ in self.paths
            if choice.key in p.decided
        )

    def _turn(
        self,
        events: Sequence[Event],
        before: Mapping[str, bool],
        i: int,
        stop: int,
        known: frozenset[str],
        items: list[Item],
        spans: list[tuple[int, int]],
    ) -> None:
        """Take the other side of a branch, and put an `if` in front of the items."""
        choice = events[i]
        assert isinstance(choice, Choice)
        turned = self._other_side(choice, {**before, **_forced_to_turn(events, choice)})
        if turned is None:
            return
        other, forced = turned
        sides = _sides(events, other, i, choice.key)
        if sides is None:
            return
        end, b0, b1 = sides
        length = _common_end(events[i + 1 : end], other[b0:b1])
        join = end - length
        inner = known | {choice.key}
        while True:
            join = next((b for a, b in spans if a < join < b), join)
            if join > end:  # as of here, up to the end of both runs
                end, b1 = len(events), len(other)
                join = max(join, end - _common_end(events[i + 1 :], other[b0:]))
                continue
            if join > stop:
                raise _JoinsLaterError(join)
            upto = b1 - (end - join)
            try:
                theirs = tuple(self._structure(other, forced, b0, max(b0, upto), inner)[0])
                break
            except _JoinsLaterError as later:
                if later.join > b1:
                    end, b1 = len(events), len(other)
                join = max(join + 1, later.join + end - b1)
        count = sum(b <= join for _, b in spans)
        mine = tuple(items[:count])
        own_path, other_path = self._path_of(events), self.run(forced)[0]
        mine, theirs = (
            _with_bindings(mine, theirs, own_path, events[:join]),
            _with_bindings(theirs, mine, other_path, other[: max(b0, upto)]),
        )
        then, otherwise = (mine, theirs) if choice.outcome else (theirs, mine)
        del items[:count], spans[:count]
        if then != otherwise:
            items.insert(0, If(choice.condition, then, otherwise, choice.is_tensor))
            spans.insert(0, (i, join))
        else:
            items[:0] = mine
            spans[:0] = [(i, join)] * len(mine)


def _with_bindings(
    items: tuple[Item, ...], others: tuple[Item, ...], path: Path, before: Sequence[Event]
) -> tuple[Item, ...]:
    """Return one side, with the variables that only the other side assigns as the run had them.

    A variable may be another name of a value, `step_size = lr`, which no event says. A variable
    that the run assigned before keeps its value.
    """
    missing = assigned(others) - assigned(items) - {"p", "g"}
    missing -= {event.name for event in before if isinstance(event, Assign)}
    bound = {
        name: text(path.bindings[name])
        for name in sorted(missing)
        if name in path.bindings and path.bindings[name].name != name
    }
    return (*items, *(Assign(name, source) for name, source in bound.items()))


class _JoinsLaterError(Exception):
    """Two sides of an inner branch join after the sides of the outer one."""

    def __init__(self, join: int) -> None:
        super().__init__(join)
        self.join = join


def _forced_to_turn(events: Sequence[Event], choice: Choice) -> dict[str, bool]:
    """Return the outcomes before a branch's first occurrence, and its other outcome."""
    first = next(n for n, e in enumerate(events) if isinstance(e, Choice) and e.key == choice.key)
    forced = {e.key: e.outcome for e in events[:first] if isinstance(e, Choice)}
    return {**forced, choice.key: not choice.outcome}


def _parts(events: Sequence[Event], key: str) -> list[tuple[int, int]]:
    """Return the parts of events after each occurrence of a branch."""
    at = [n for n, e in enumerate(events) if isinstance(e, Choice) and e.key == key]
    return [(a + 1, b) for a, b in itertools.pairwise([*at, len(events)])]


def _sides(
    events: Sequence[Event], other: Sequence[Event], i: int, key: str
) -> tuple[int, int, int] | None:
    """Return where the sides of a branch end at most, and where the other run's begins.

    The branch is the event `i`. The numbers are this run's end, the other's start, and its end.
    There are none if an earlier occurrence of the branch has its sides.
    """
    occurrence = sum(isinstance(e, Choice) and e.key == key for e in events[:i])
    parts, other_parts = _parts(events, key), _parts(other, key)
    if occurrence == 0 and _is_asked_later(other, i, key):
        return len(events), i, len(other)
    if len(parts) == len(other_parts):
        return parts[occurrence][1], *other_parts[occurrence]
    if occurrence == 0:
        return len(events), other_parts[0][0], len(other)
    return None


def _is_asked_later(other: Sequence[Event], i: int, key: str) -> bool:
    """Tell if a run asks for a condition later than at the place `i` where another run does.

    One run of `if not state and momentum:` makes the state in an earlier step, and the other one
    asks for the momentum in each step.
    """
    here = other[i] if i < len(other) else None
    return not (isinstance(here, Choice) and here.key == key)


def _common_end(a: Sequence[Event], b: Sequence[Event]) -> int:
    """Return how many events at the end of both are equal."""
    n = 0
    while n < min(len(a), len(b)) and a[-1 - n] == b[-1 - n]:
        n += 1
    return n


def _sites(path: Path) -> Iterator[tuple[tuple[str, int, int], Value]]:
    """Yield the values of a run with their sites: the author's line, and a number in this line."""
    seen: dict[tuple[str, int], int] = {}
    for event in path.events:
        if isinstance(event, Value) and event.op != "copy":
            seen[event.place] = seen.get(event.place, 0) + 1
            yield (*event.place, seen[event.place]), event
