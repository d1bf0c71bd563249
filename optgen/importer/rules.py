"""Find a class's rule: merge the code of all its runs, with its states and its bounds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optgen.importer.branches import (
    merged,
    with_joined_ifs,
    with_totals_outside,
    with_wheres,
)
from optgen.importer.counts import MATRIX, VECTOR
from optgen.importer.explore import Explorer, RefusedRunError
from optgen.importer.kinds import with_kinds, with_numbers_widened
from optgen.importer.names import kept_word
from optgen.importer.recording import KeptError, NotImportedError, ReadTwiceError, Record
from optgen.importer.run import Subject
from optgen.importer.statements import (
    Choice,
    Item,
    folded,
    names_read,
    with_wide_reductions_first,
    without_copies,
    without_dead,
)
from optgen.importer.states import FoundState, find_states, with_first_step


@dataclass(frozen=True)
class Bound:
    """A bound of an argument: `name`, one of ge, gt, le, lt, and the number."""

    name: str
    kind: str
    number: float


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
    kept: frozenset[str] = frozenset()
    """The arguments that the steps read as the constructor got them, and not in the groups."""
    left_out: frozenset[str] = frozenset()
    """The keys of states that no step reads. The rule has none of them."""
    has_totals: bool = False
    """There are sums that begin with 0: over several parameters, or over this one."""


_Setting = tuple[tuple[int, ...], bool]
"""The shape of the parameter, and whether the step is the first."""


def find_rule(subject: Subject) -> Rule:
    """Explore a class for matrices and vectors, in first and later steps, and merge the code."""
    bounds = _bounds(subject)
    positive = {each.name for each in bounds if each.kind in ("ge", "gt") and each.number >= 0}
    nonnegative = frozenset(positive | {kept_word(name) for name in positive & subject.own})
    shapes = (MATRIX,) if subject.is_for_matrices else (MATRIX, VECTOR)
    explorers: dict[_Setting, Explorer] = {
        (shape, fresh): Explorer(subject, shape, fresh, nonnegative)
        for shape in shapes
        for fresh in (True, False)
    }
    codes = _codes(explorers)
    runs = {key: [path for _, path, _ in each.paths] for key, each in explorers.items()}
    states = find_states(subject, runs)
    by_shape = []
    for shape in shapes:
        first, later = codes[shape, True], codes[shape, False]
        by_shape.append(with_first_step(subject, states, shape, first, later))
    items: Sequence[Item] = by_shape[0]
    if by_shape[0] != by_shape[-1]:
        items = merged("factored(p)", by_shape[0], by_shape[1])
    all_states = states
    items, states = _without_unread(subject, items, all_states)
    left_out = frozenset(each.key for each in all_states if each not in states)
    live = {"p", *(subject.state_word(each.key) for each in states)}
    arguments = {a.word for a in subject.arguments}
    numbers = {"t", *arguments, *(subject.state_word(s.key) for s in states if s.shape == "scalar")}
    numbers |= {kept_word(name) for name in subject.own}
    flags = {a.word for a in subject.arguments if isinstance(a.default, bool)}
    items = with_kinds(with_totals_outside(with_joined_ifs(items), arguments), live)
    items = with_wide_reductions_first(with_numbers_widened(items, numbers, flags))
    items = without_copies(folded(with_wheres(items)), arguments)
    aliases: dict[str, str] = {}
    for path in itertools.chain(*runs.values()):
        aliases |= path.aliases
    if not (items := without_dead(items, live)):
        raise NotImportedError(
            "the step changes no parameter",
            hint="the import gives it one matrix or one vector, without names",
        )
    records = [record for each in explorers.values() for record, _, _ in each.paths]
    reduces_all = any(each.reduces_all for each in records)
    return Rule(
        items,
        states,
        bounds,
        aliases,
        len(records),
        _lost(records),
        reduces_all,
        _kept(records),
        left_out,
        has_totals=any(each.has_totals for each in records),
    )


def _codes(explorers: dict[_Setting, Explorer]) -> dict[_Setting, list[Item]]:
    """Return the code of each, explored until none finds another number that all must compute."""
    computed: set[str] = set()
    for each in explorers.values():
        each.computed = computed
    while True:
        before = len(computed)
        codes = {key: folded(each.code()) for key, each in explorers.items()}
        if len(computed) == before:
            return codes


def _without_unread(
    subject: Subject, items: Sequence[Item], states: tuple[FoundState, ...]
) -> tuple[tuple[Item, ...], tuple[FoundState, ...]]:
    """Return the code and the states without dead code, and without states that no step reads."""
    while True:
        live = {"p", *(subject.state_word(each.key) for each in states)}
        items = without_dead(items, live)
        read = names_read(items)
        kept = tuple(each for each in states if subject.state_word(each.key) in read)
        if kept == states:
            return items, states
        states = kept


def _lost(records: Sequence[Record]) -> frozenset[str]:
    """Return the words whose numbers the rule does not say.

    Raises:
        NotImportedError: the rate is one.
    """
    lost = {word: place for each in records for word, place in each.lost.items()}
    if "lr" in lost:
        raise NotImportedError(
            "the step makes a whole number or a text of `lr`, or a loop of this length",
            lost["lr"],
            hint="compute with the rate itself, as in `floor(lr)`",
        )
    return frozenset(lost)


def _kept(records: Sequence[Record]) -> frozenset[str]:
    """Return the arguments that the steps read as the constructor got them.

    Raises:
        KeptError: it is the rate, or another place of the steps reads the group's number.
    """
    places = {name: place for each in records for name, place in each.kept.items()}
    renewed = set[str]().union(*(each.renewed for each in records))
    for name in sorted(renewed & places.keys()):
        raise ReadTwiceError(name, places[name])
    if "lr" in places:
        raise KeptError("lr", places["lr"])
    return frozenset(places)


def _bounds(subject: Subject) -> tuple[Bound, ...]:
    """Return the bounds that the constructor checks."""
    explorer = Explorer(subject, MATRIX, True)
    events = explorer.first_run()
    found: list[Bound] = []
    names = {a.word for a in subject.arguments if not isinstance(a.default, tuple)}
    names |= {
        f"{a.word}[{i}]"
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
        except RefusedRunError as refused:
            if refused.is_constructed:
                continue
            opposite = {"lt": "ge", "gt": "le"}[condition.op]
            kind = condition.op if event.outcome else opposite
            bound = Bound(str(condition.args[0].name), kind, number)
            if bound not in found:
                found.append(bound)
    return tuple(found)
