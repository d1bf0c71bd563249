"""Run a step until all sides of its branches are seen, and merge the runs into one rule.

Each branch of a run is turned once, with the earlier ones as they were. So the number of runs grows
with the branches and not with their combinations; the proof compares combinations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from optgen.importer.kinds import with_kinds
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
    folded,
    merged,
    names_read,
    with_wheres,
    with_wide_reductions_first,
    without_copies,
    without_dead,
)
from optgen.importer.values import Value, text

MAX_RUNS = 200
MATRIX, VECTOR = (4, 3), (5,)


@dataclass(frozen=True)
class Bound:
    """A bound of an argument: `name`, one of ge, gt, le, lt, and the number."""

    name: str
    kind: str
    number: float


@dataclass(frozen=True)
class FoundState:
    """A state: its key, its first value, its shape, when it exists, and its dtype or ""."""

    key: str
    init: str
    shape: str
    when: str
    dtype: str = ""


@dataclass(frozen=True)
class Rule:
    """The merged code, the states, the bounds, and how many runs it took. `lost`: the words whose
    numbers the rule does not say, such as the length of a loop.
    """

    items: tuple[Item, ...]
    states: tuple[FoundState, ...]
    bounds: tuple[Bound, ...]
    aliases: Mapping[str, str]
    num_runs: int
    lost: frozenset[str] = frozenset()
    reduces_all: bool = False
    """A reduction goes over all parameters."""


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
    has_new_sites: bool = False
    computed: set[str] = field(default_factory=set)
    owned: frozenset[str] = frozenset()
    """The variables that `computed` had when a pass began, so all runs of a pass are alike."""
    raising: set[tuple[str, bool]] = field(default_factory=set)

    def run(self, forced: Mapping[str, bool]) -> tuple[Path, list[Event]]:
        """Run with forced outcomes, or return the earlier run with them."""
        for record, path, events in self.paths:
            if record.equals_run_with(forced):
                return path, events
        if len(self.paths) >= MAX_RUNS:
            raise NotImportedError(f"more than {MAX_RUNS} paths", hint="--set some arguments")
        record = Record(forced, self.nonnegative)
        run = Run(self.subject, record, self.shape, self.owned, computed=self.computed)
        path = run.take(is_fresh=self.is_fresh)
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
        for _ in range(50):
            self._name_sites(path)
            try:
                return events_of(path.events)
            except HazardError as error:
                if error.value.op == "atom":
                    error.value.name = f"{error.value.name}_before"
                    continue
                site = next(site for site, v in _sites(path) if v is error.value)
                self.sites[site] = f"{error.value.name or 'x'}_{len(self.sites) + 1}"
                self.has_new_sites = True
        raise NotImportedError("values are overwritten before they are read")

    def _name_sites(self, path: Path) -> None:
        """Give the values of known sites names of their own; copies have the old names."""
        named = [(site, v) for site, v in _sites(path) if site in self.sites]
        for site, value in named:
            if value.name == self.sites[site]:
                continue
            if value.name is not None:
                at = next(n for n, e in enumerate(path.events) if e is value) + 1
                copy = Value("copy", (value,), name=value.name, place=value.place)
                path.events.insert(at, copy)
            value.name = self.sites[site]

    def _path_of(self, events: Sequence[Event]) -> Path:
        """Return the run that has these events."""
        return next(path for _, path, each in self.paths if each is events)

    def code(self) -> list[Item]:
        """Return the merged code of all paths."""
        for _ in range(20):
            self.paths.clear()
            num_computed = len(self.computed)
            self.owned = frozenset(self.computed)
            try:
                events = self.run({})[1]
            except NotImportedError:
                raise
            except Exception as error:
                raise failed(error) from error
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
            if event.key in known or (event.key, not event.outcome) in self.raising:
                continue
            self._turn(events, before, i, stop, known, items, spans)
        return items, spans

    def _other_side(self, choice: Choice, forced: Mapping[str, bool]) -> list[Event] | None:
        """Return the events of the run that takes a branch's other side; None if the class raises.

        Raises:
            NotImportedError: this run does not come to the branch.
        """
        try:
            other = self.run(forced)[1]
        except NotImportedError:
            raise
        except Exception:
            self.raising.add((choice.key, not choice.outcome))
            return None
        if not _parts(other, choice.key):
            raise NotImportedError(
                f"a run comes to `{choice.condition}`, and another one with the same earlier "
                "answers does not",
                hint="let the step depend on arguments, states and the step count only",
            )
        return other

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
        forced = {**before, **_forced_to_turn(events, choice)}
        other = self._other_side(choice, forced)
        if other is None:
            return
        occurrence = sum(isinstance(e, Choice) and e.key == choice.key for e in events[:i])
        parts, other_parts = _parts(events, choice.key), _parts(other, choice.key)
        if occurrence == 0 and _is_asked_later(other, i, choice.key):
            end, (b0, b1) = len(events), (i, len(other))
        elif len(parts) == len(other_parts):
            end, (b0, b1) = parts[occurrence][1], other_parts[occurrence]
        elif occurrence == 0:
            end, (b0, b1) = len(events), (other_parts[0][0], len(other))
        else:
            return
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


def find_rule(subject: Subject) -> Rule:
    """Explore a class for matrices and vectors, in first and later steps, and merge the code."""
    bounds = _bounds(subject)
    nonnegative = frozenset(
        each.name for each in bounds if each.kind in ("ge", "gt") and each.number >= 0
    )
    explorers: dict[tuple[tuple[int, ...], bool], Explorer] = {
        (shape, fresh): Explorer(subject, shape, fresh, nonnegative)
        for shape in (MATRIX, VECTOR)
        for fresh in (True, False)
    }
    computed: set[str] = set()
    for each in explorers.values():
        each.computed = computed
    while True:
        before = len(computed)
        codes = {key: folded(each.code()) for key, each in explorers.items()}
        if len(computed) == before:
            break
    states = _states(subject, explorers)
    by_shape = []
    for shape in (MATRIX, VECTOR):
        first, later = codes[shape, True], codes[shape, False]
        if first != later:
            first = merged(_first_step(subject, states, shape), first, later)
        by_shape.append(first)
    items: Sequence[Item] = by_shape[0]
    if by_shape[0] != by_shape[1]:
        items = merged("factored(p)", by_shape[0], by_shape[1])
    live = {"p", *(subject.letter(each.key) for each in states)}
    items = without_dead(items, set(live))
    items = with_wide_reductions_first(with_kinds(items, live))
    items = without_copies(folded(with_wheres(items)), {a.name for a in subject.arguments})
    aliases: dict[str, str] = {}
    for each in explorers.values():
        for _, path, _ in each.paths:
            aliases |= path.aliases
    runs = sum(len(each.paths) for each in explorers.values())
    if not (items := without_dead(items, live)):
        raise NotImportedError(
            "the step changes no parameter",
            hint="the import gives it one matrix or one vector, without names",
        )
    records = [record for each in explorers.values() for record, _, _ in each.paths]
    lost = frozenset[str]().union(*(each.lost for each in records))
    reduces_all = any(each.reduces_all for each in records)
    return Rule(items, states, bounds, aliases, runs, lost, reduces_all)


def _first_step(subject: Subject, states: Sequence[FoundState], shape: tuple[int, ...]) -> str:
    """Return the condition of a parameter's first step."""
    own = "factored" if shape == MATRIX else "not factored"
    for each in states:
        if each.shape != "scalar" and each.when in ("", own):
            return f"fresh({subject.letter(each.key)})"
    return "t == 1"


def _bounds(subject: Subject) -> tuple[Bound, ...]:
    """Return the bounds that the constructor checks."""
    explorer = Explorer(subject, MATRIX, True)
    try:
        _, events = explorer.run({})
    except NotImportedError:
        raise
    except Exception as error:
        raise failed(error) from error
    found: list[Bound] = []
    names = {f"{a.name}" for a in subject.arguments if not isinstance(a.default, tuple)}
    names |= {
        f"{a.name}[{i}]"
        for a in subject.arguments
        if isinstance(a.default, tuple)
        for i in range(len(a.default))
    }
    for n, event in enumerate(events):
        if not isinstance(event, Choice):
            continue
        condition = explorer.conditions[event.key]
        if condition.op not in ("lt", "gt") or condition.args[0].name not in names:
            continue
        number = condition.args[1].constant
        if not isinstance(number, int | float):
            continue
        forced = {e.key: e.outcome for e in events[:n] if isinstance(e, Choice)}
        try:
            explorer.run({**forced, event.key: not event.outcome})
        except NotImportedError:
            continue
        except Exception:
            opposite = {"lt": "ge", "gt": "le"}[condition.op]
            kind = condition.op if event.outcome else opposite
            bound = Bound(str(condition.args[0].name), kind, number)
            if bound not in found:
                found.append(bound)
    return tuple(found)


def _states(
    subject: Subject, explorers: Mapping[tuple[tuple[int, ...], bool], Explorer]
) -> tuple[FoundState, ...]:
    """Return the states of all runs."""
    keys: dict[str, None] = {}
    for each in explorers.values():
        for _, path, _ in each.paths:
            keys |= dict.fromkeys(path.states)
    return tuple(_state(key, subject, explorers) for key in keys)


def _state(
    key: str, subject: Subject, explorers: Mapping[tuple[tuple[int, ...], bool], Explorer]
) -> FoundState:
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    init = "0"
    present: list[tuple[bool, dict[str, bool]]] = []
    for (shape, fresh), each in explorers.items():
        for _, path, _ in each.paths:
            if key in path.states:
                shapes[shape] = path.states[key][0]
            if fresh and key in path.inits:
                init = path.inits[key].key
            present.append((key in path.states, path.decided))
    when = ""
    if set(shapes) != {MATRIX, VECTOR}:
        when = "factored" if MATRIX in shapes else "not factored"
    elif not all(is_there for is_there, _ in present):
        when = _flag_of(present, key, {a.name for a in subject.arguments})
    word = _shape_word(key, shapes)
    dtypes = {
        path.states[key][1]
        for e in explorers.values()
        for _, path, _ in e.paths
        if key in path.states
    }
    is_default = word == "scalar" and torch.get_default_dtype() in dtypes
    return FoundState(key, init, word, when, "torch" if is_default else "")


def _flag_of(present: Sequence[tuple[bool, dict[str, bool]]], key: str, names: set[str]) -> str:
    """Return the argument that decides if a state exists."""
    for name in names:
        if all(decided.get(name, not there) == there for there, decided in present):
            return name
        if all(decided.get(name, there) != there for there, decided in present):
            return f"not {name}"
    return ""


def _shape_word(key: str, shapes: Mapping[tuple[int, ...], tuple[int, ...]]) -> str:
    if all(shape == mine for shape, mine in shapes.items()):
        return "like"
    if all(mine in ((), (1,)) for mine in shapes.values()):
        return "scalar"
    words = {(4, 1): "row", (1, 3): "col", (4,): "row", (3,): "col"}
    if (word := words.get(shapes.get(MATRIX, ()))) is not None:
        return word
    raise NotImportedError(f"the state {key!r} has the shape {shapes.get(MATRIX)} for {MATRIX}")
