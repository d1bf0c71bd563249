"""Which steps of a rule are run together, and which values are stored then.

A large matrix is swept as the plan says. Of small ones a thread has whole matrices at hand, so that
only a sum over all of them must be waited for: their rows and columns are known as soon as their
elements are, and are computed anew in every pass, as the elements are. But a state of rows that is
stored as it was computed can be read back.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from optgen.ir.kinds import Axes
from optgen.lowerings.fused_cpu.steps import Step


@dataclass(frozen=True)
class Pass:
    """Steps that are run on every part of a tensor, steps that follow when all parts are done."""

    steps: tuple[Step, ...]
    finish: tuple[Step, ...]
    stores: tuple[str, ...]


def shared_passes(steps: Sequence[Step], streams: Iterable[str]) -> list[Pass]:
    """The passes over a large matrix: the sweeps of the plan, and what it finishes after each."""
    streams = tuple(streams)
    found = []
    for sweep in dict.fromkeys(step.sweep for step in steps):
        inside = [step for step in steps if step.sweep == sweep]
        swept = tuple(step for step in inside if step.swept)
        finish = tuple(step for step in inside if not step.swept)
        written = {n for step in inside for n in step.writes}
        found.append(Pass(swept, finish, tuple(n for n in streams if n in written)))
    return found


def local_passes(steps: Sequence[Step], streams: Iterable[str]) -> list[Pass]:
    """The passes over small matrices, or over what has no rows and columns."""
    levels = _levels(steps)
    runs = [_needed(steps, levels, at) for at in range(1 + max(levels))]
    return _laid_out(steps, levels, runs, streams)


def exact_passes(steps: Sequence[Step], streams: Mapping[str, Axes]) -> list[Pass]:
    """The same where states of rows and columns are of the type computed in; none if no better.

    They are stored by the first pass that knows them, and later ones read them.
    """
    levels = _levels(steps)
    kept = {name for name, axes in streams.items() if axes is not Axes.TENSOR}
    runs = [_needed(steps, levels, at, kept) for at in range(1 + max(levels))]
    for name in kept:
        writers = [i for i, step in enumerate(steps) if name in step.writes]
        first = min((levels[i] for i in writers), default=0)
        # What ran again would take the new value for the old one.
        again = {i for at, run in enumerate(runs) if at > first for i in run}
        if any(i in again and name in (*steps[i].reads, *steps[i].writes) for i in _until(writers)):
            return []
    return _laid_out(steps, levels, runs, streams) if kept and len(runs) > 1 else []


def _until(writers: Sequence[int]) -> range:
    return range(max(writers, default=-1) + 1)


def _laid_out(
    steps: Sequence[Step],
    levels: Sequence[int],
    runs: Sequence[set[int]],
    streams: Iterable[str],
) -> list[Pass]:
    """The passes that run these steps; a value is stored by the last one that computes it."""
    last = {
        name: max(at for at, run in enumerate(runs) if index in run)
        for index, step in enumerate(steps)
        for name in step.writes
    }
    found = []
    for at, run in enumerate(runs):
        inside = tuple(steps[index] for index in sorted(run))
        counted = (s for s, level in zip(steps, levels, strict=True) if level == at)
        stores = tuple(name for name in streams if last.get(name) == at)
        found.append(Pass(inside, tuple(filter(_is_number, counted)), stores))
    return found


def _is_number(step: Step) -> bool:
    """Whether it computes with numbers of the whole tensor only."""
    return step.axes is Axes.NONE and not step.word


def _levels(steps: Sequence[Step]) -> list[int]:
    """How many passes must have ended before each step: a sum over the whole tensor ends one."""
    known: dict[str, int] = {}
    levels = []
    for step in steps:
        level = max((known.get(n, 0) for n in (*step.reads, *step.takes)), default=0)
        levels.append(level)
        ends = bool(step.word) and step.axes is Axes.NONE
        finished = level + 1 if ends else level
        for name in (*step.writes, *step.gives):
            known[name] = max(finished, known.get(name, 0))
    # Numbers are computed between two passes: with the one whose sums they take.
    return [
        level - 1 if _is_number(step) and level else level
        for step, level in zip(steps, levels, strict=True)
    ]


def _needed(
    steps: Sequence[Step], levels: Sequence[int], at: int, kept: Container[str] = ()
) -> set[int]:
    """The steps of a pass: its own, and those that make what they read once more.

    What is `kept` since an earlier pass is read.
    """
    needed: set[int] = set()
    waiting = [i for i, step in enumerate(steps) if levels[i] == at and not _is_number(step)]
    while waiting:
        index = waiting.pop()
        if index in needed:
            continue
        needed.add(index)
        for name in steps[index].reads:
            makers = [i for i in range(index) if name in steps[i].writes][-1:]
            waiting += [i for i in makers if name not in kept or levels[i] == at]
    return needed
