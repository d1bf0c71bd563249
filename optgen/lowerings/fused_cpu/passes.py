"""Which steps of a rule are run together, and which values are stored then.

A large matrix is swept as the plan says. Of small ones a thread has whole matrices at hand, so that
only a sum over all of them must be waited for: their rows and columns are known as soon as their
elements are, and are computed anew in every pass, as the elements are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    streams = tuple(streams)
    levels = _levels(steps)
    count = 1 + max(levels)
    runs = [_needed(steps, levels, at) for at in range(count)]
    last = {
        name: max(at for at in range(count) if index in runs[at])
        for index, step in enumerate(steps)
        for name in step.writes
    }
    found = []
    for at in range(count):
        inside = tuple(steps[index] for index in sorted(runs[at]))
        finish = tuple(
            s for s, level in zip(steps, levels, strict=True) if level == at and _is_number(s)
        )
        found.append(Pass(inside, finish, tuple(n for n in streams if last.get(n) == at)))
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


def _needed(steps: Sequence[Step], levels: Sequence[int], at: int) -> set[int]:
    """The steps of a pass: its own, and those that make what they read once more."""
    needed: set[int] = set()
    waiting = [i for i, step in enumerate(steps) if levels[i] == at and not _is_number(step)]
    while waiting:
        index = waiting.pop()
        if index in needed:
            continue
        needed.add(index)
        waiting += _makers(steps, index)
    return needed


def _makers(steps: Sequence[Step], index: int) -> Iterator[int]:
    """The steps that last wrote what a step reads."""
    for name in steps[index].reads:
        earlier = [i for i in range(index) if name in steps[i].writes]
        yield from earlier[-1:]
