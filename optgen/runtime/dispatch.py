"""Take a step: every group through the lowering that is chosen for it."""

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from torch import Tensor

from optgen.runtime import unfused
from optgen.runtime.choice import UNFUSED, choose, forced
from optgen.runtime.collect import release, survey, undo
from optgen.runtime.gradients import all_plain
from optgen.runtime.sharded.views import advance_versions
from optgen.runtime.state import Group
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer
    from optgen.runtime.sharded.agreement import Meeting

Update = Callable[[], None]

_IN_PARTS = "in parts"  # for both of them: they share a form for parts of parameters


def step(optimizer: "GeneratedOptimizer", given: Sequence[Tensor | None] | None = None) -> None:
    """Take one step of all groups: one call for all the groups that share a fused lowering.

    `given` are gradients for the parameters of the only group, instead of the parameters' own.
    What can be refused is refused before anything is written, and then the states are as before.
    """
    try:
        if given is None and _at_once(optimizer):
            optimizer._survey.before = None
            return
        works, updates = _prepared(optimizer, given)
    except BaseException:
        undo(optimizer)
        raise
    stepped = False
    try:
        for update in updates:
            update()
        for work in works:
            advance_versions(work.members)
        # Only where it matters: on a device, the answer must be waited for.
        stepped = not (optimizer._survey.created and unfused.skipped(optimizer))
    finally:
        release(optimizer, stepped)


def _prepared(
    optimizer: "GeneratedOptimizer", given: Sequence[Tensor | None] | None
) -> tuple[list[Work], list[Update]]:
    """The works of a step, and the updates that are left to be called."""
    with _together(optimizer) as meeting:
        works = survey(optimizer, given)
        batches = _batches(optimizer, works)
        together = _prepare(optimizer, batches, meeting) if meeting else None
        updates = [_update(optimizer, *batch) for batch in sorted(batches.items(), key=_rank)]
    return works, [*updates, together] if together else updates


def _rank(batch: tuple[str, list[Group]]) -> bool:
    """The kernel first: it alone sees that a sparse gradient names no row of its parameter."""
    return batch[0] != "fused_cpu"


def _update(optimizer: "GeneratedOptimizer", lowering: str, groups: list[Group]) -> Update:
    """Check that a lowering can take these groups; return what does."""
    if lowering in UNFUSED:
        return unfused.prepare(optimizer, groups, lowering)
    prepare = importlib.import_module(f"optgen.runtime.{lowering}").prepare
    update: Update = prepare(optimizer, groups)
    return update


def _at_once(optimizer: "GeneratedOptimizer") -> bool:
    """Take the step as the one before it, or as a first one of ordinary tensors, if that can be."""
    from optgen.runtime import fused_cpu

    known = optimizer._repeat
    if known is not None and known.forced == forced() and fused_cpu.repeat(optimizer):
        return True
    return not optimizer._survey.works and fused_cpu.begin(optimizer)


def _batches(optimizer: "GeneratedOptimizer", works: list[Work]) -> dict[str, list[Group]]:
    """The groups of this step by the lowering that takes them."""
    batches: dict[str, list[Group]] = {}
    for work in (part for whole in works for part in whole.parts or (whole,)):
        if work.params:
            lowering, _ = choose(optimizer, work)
            if work.trait.placed is not None and lowering in UNFUSED:
                lowering = _IN_PARTS
            batches.setdefault(lowering, []).append(work.group)
    return batches


def _together(optimizer: "GeneratedOptimizer") -> AbstractContextManager["Meeting | None"]:
    """A context that is left on all ranks or on none, if the step has collectives."""
    if optimizer.rule.elementwise or all(all_plain(g["params"]) for g in optimizer.param_groups):
        return nullcontext()
    from optgen.runtime.sharded.agreement import agreed

    return agreed(optimizer)


def _prepare(
    optimizer: "GeneratedOptimizer", batches: dict[str, list[Group]], meeting: "Meeting"
) -> Update | None:
    """Say what is about to happen; return the step of what is in parts and not fused."""
    from optgen.runtime.sharded.step import announce, prepare

    in_parts = batches.pop(_IN_PARTS, [])
    announce(optimizer, batches, meeting)
    return prepare(optimizer, in_parts, meeting) if in_parts else None
