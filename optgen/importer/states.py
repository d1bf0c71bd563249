"""The states of a class: what its runs keep for a parameter."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from optgen.importer.branches import given, merged, without_impossible
from optgen.importer.counts import MATRIX
from optgen.importer.places import line_that_sets
from optgen.importer.recording import NotImportedError
from optgen.importer.run import Path, Subject
from optgen.importer.shapes import size_of
from optgen.importer.statements import Item

Runs = Mapping[tuple[tuple[int, ...], bool], Sequence[Path]]
"""The runs by the parameter's shape, and by whether the step is its first."""


@dataclass(frozen=True)
class FoundState:
    """A state: its key, its first value, its shape, when it exists, and its dtype or ""."""

    key: str
    init: str
    shape: str
    when: str
    dtype: str = ""


def find_states(subject: Subject, runs: Runs) -> tuple[FoundState, ...]:
    """Return the states of all runs."""
    keys: dict[str, None] = {}
    for path in itertools.chain(*runs.values()):
        keys |= dict.fromkeys(path.states)
    return tuple(_state(key, subject, runs) for key in keys)


def _state(key: str, subject: Subject, runs: Runs) -> FoundState:
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    init = "0"
    present: list[tuple[bool, dict[str, bool]]] = []
    for (shape, fresh), paths in runs.items():
        for path in paths:
            if key in path.states:
                shapes[shape] = path.states[key][0]
            if fresh and key in path.inits:
                init = path.inits[key].key
            present.append((key in path.states, path.decided))
    when = ""
    if set(shapes) != {shape for shape, _ in runs}:
        when = "factored" if MATRIX in shapes else "not factored"
    elif not all(is_there for is_there, _ in present):
        when = _flag_of(present, key, {a.word for a in subject.arguments})
    word = _shape_word(key, shapes, subject.cls)
    every = itertools.chain(*runs.values())
    dtypes = {path.states[key][1] for path in every if key in path.states}
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


def _shape_word(key: str, shapes: Mapping[tuple[int, ...], tuple[int, ...]], cls: type) -> str:
    if all(mine in (shape, (size_of(shape),)) for shape, mine in shapes.items()):
        return "like"
    if all(mine in ((), (1,)) for mine in shapes.values()):
        return "scalar"
    words = {(4, 1): "row", (1, 3): "col", (4,): "row", (3,): "col"}
    if (word := words.get(shapes.get(MATRIX, ()))) is not None:
        return word
    raise NotImportedError(
        f"the state {key!r} has the shape {shapes.get(MATRIX)} for {MATRIX}",
        line_that_sets(cls, key),
    )


def with_first_step(
    subject: Subject,
    states: Sequence[FoundState],
    shape: tuple[int, ...],
    first: list[Item],
    later: list[Item],
) -> list[Item]:
    """Return the code of a first and a later step as one.

    If states exist only with a flag, they tell the first step where the flag is true. So a rule
    goes on from a state dict without a step count.
    """
    if first == later:
        return first
    condition = _first_step(subject, states, shape)
    flags = [
        s for s in states if s.shape == "like" and s.when in {a.word for a in subject.arguments}
    ]
    if condition == "t == 1" and flags:
        flag, own = flags[0].when, f"fresh({subject.state_word(flags[0].key)})"
        sides = []
        for is_on in (True, False):
            a, b = (given(flag, is_on, code) for code in (first, later))
            asked = own if is_on else condition
            sides.append(a if a == b else without_impossible(merged(asked, a, b), asked))
        return merged(flag, *sides)
    return without_impossible(merged(condition, first, later), condition)


def _first_step(subject: Subject, states: Sequence[FoundState], shape: tuple[int, ...]) -> str:
    """Return the condition of a parameter's first step."""
    own = "factored" if shape == MATRIX else "not factored"
    for each in states:
        if each.shape != "scalar" and each.when in ("", own):
            return f"fresh({subject.state_word(each.key)})"
    return "t == 1"
