"""All ranks take a step, or none does: what one of them would raise or skip all agree on before.

A rank that waits in a collective for one that has raised an error waits for good. So before the
first of a step's collectives every rank says, in one small all_reduce, whether anything failed,
what it is about to do, and whether its gradients overflowed. After that a step cannot fail on one
rank alone, but for what stops a process anyhow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from zlib import crc32

import torch
from torch import Tensor, distributed

from optgen.runtime.gradients import all_plain
from optgen.runtime.sharded.placed import Placed, placed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from optgen.runtime.optimizer import GeneratedOptimizer


class Meeting:
    """What a rank is about to do; all ranks must say the same."""

    def __init__(self) -> None:
        self._digest = 0

    def note(self, *facts: object) -> None:
        """Add to it anything whose text is the same in every process."""
        self._digest = crc32(repr(facts).encode(), self._digest)

    def vector(self, failed: bool, overflowed: float) -> Tensor:
        """Numbers whose maxima over the ranks tell: of a digest, the greatest and the least."""
        digest = float(self._digest)
        return torch.tensor([failed, digest, -digest, overflowed], dtype=torch.float64)


@contextmanager
def agreed(
    optimizer: GeneratedOptimizer, given: Sequence[Tensor | None] | None = None
) -> Iterator[Meeting]:
    """Leave the context on all ranks that hold parts of the parameters, or on none of them.

    There is nothing to agree on where no parameter is in parts. A gradient scaler's `found_inf`
    becomes that of any rank.

    Raises:
        RuntimeError: another rank failed within its context, or is about to do something else.
    """
    meeting, groups = Meeting(), _groups(optimizer)
    for group in optimizer.param_groups if groups else ():
        found = [param.grad for param in group["params"]] if given is None else given
        meeting.note([grad is None for grad in found])
    try:
        yield meeting
    except Exception:
        if groups:
            _greatest(meeting.vector(True, 0.0), groups)
        raise
    if groups:
        _conclude(optimizer, meeting, groups)


def _conclude(
    optimizer: GeneratedOptimizer, meeting: Meeting, groups: Sequence[tuple[ProcessGroup, str]]
) -> None:
    found = getattr(optimizer, "found_inf", None)
    own = 0.0 if found is None else float(found)
    failed, most, least, overflowed = _greatest(meeting.vector(False, own), groups)
    if failed:
        raise RuntimeError("another process could not take this step: its error says why")
    if most != -least:
        raise RuntimeError(
            "the processes that hold parts of the parameters are about to take different steps: "
            "everywhere the same parameters must have gradients, equal step counts and options"
        )
    if isinstance(found, Tensor) and overflowed != own:
        found.fill_(overflowed)


def _groups(optimizer: GeneratedOptimizer) -> list[tuple[ProcessGroup, str]]:
    """The groups among which parameters are split, in their order, and the device they are on."""
    found: dict[Placed, str] = {}
    for group in optimizer.param_groups:
        if not all_plain(group["params"]):
            for param in group["params"]:
                where = placed(param)
                if where is not None:
                    found.setdefault(where, param.device.type)
    groups = {cut.group: device for where, device in found.items() for cut in where.cuts()}
    return list(groups.items())


def _greatest(vector: Tensor, groups: Sequence[tuple[ProcessGroup, str]]) -> list[float]:
    """The maxima over all ranks; a group that can talk between CPUs does, and no device waits."""
    for group, device in groups:
        on_cpu = "cpu:" in distributed.get_backend_config(group)
        sent = vector if on_cpu else vector.to(device)
        distributed.all_reduce(sent, distributed.ReduceOp.MAX, group=group)
        vector = sent.cpu()
    greatest: list[float] = vector.tolist()
    return greatest
