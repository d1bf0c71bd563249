"""All ranks take a step, or none does: what one of them would raise or skip all agree on before.

A rank that waits in a collective for one that has raised an error waits for good. So before the
first of a step's collectives every rank says, in one small all_reduce, whether anything failed,
what it is about to do, and whether its gradients overflowed. After that a step cannot fail on one
rank alone, but for what stops a process anyhow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from zlib import crc32

import torch
from torch import Tensor, distributed

from optgen.runtime.sharded.placed import Placed, placed

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer


class Meeting:
    """What a rank is about to do: what concerns a group of ranks is the same in all of them."""

    def __init__(self, devices: Mapping[Placed, str]) -> None:
        self._cuts = {where: where.cuts() for where in devices}
        self._devices = {
            cut.group: devices[where] for where, cuts in self._cuts.items() for cut in cuts
        }
        self._digests = dict.fromkeys(self._devices, 0)

    def note(self, where: Placed, *facts: object) -> None:
        """Add anything, the text of which is the same in every process, about parameters there."""
        text = repr((where.placements, facts)).encode()
        for cut in self._cuts[where]:
            self._digests[cut.group] = crc32(text, self._digests[cut.group])

    def conclude(self, failed: bool, overflowed: float) -> tuple[bool, bool, float]:
        """Ask all ranks; return whether one failed, whether two differ, and the greatest overflow.

        A group that has a backend for CPUs talks there, so that no device is waited for.
        """
        differ = False
        for group, device in self._devices.items():
            digest = float(self._digests[group])
            vector = torch.tensor([failed, differ, overflowed, digest, -digest]).double()
            on_cpu = "cpu:" in distributed.get_backend_config(group)
            sent = vector if on_cpu else vector.to(device)
            distributed.all_reduce(sent, distributed.ReduceOp.MAX, group=group)
            any_failed, any_differ, overflowed, most, least = sent.tolist()
            failed, differ = bool(any_failed), bool(any_differ) or most != -least
        return failed, differ, overflowed


@contextmanager
def agreed(optimizer: GeneratedOptimizer) -> Iterator[Meeting]:
    """Leave the context on all ranks that hold parts of the same parameters, or on none of them.

    There is nothing to agree on where no parameter is in parts. A gradient scaler's `found_inf`
    becomes that of any rank.

    Raises:
        RuntimeError: another rank failed within its context, or is about to do something else.
    """
    places = _places(optimizer)
    meeting = Meeting({where: params[0].device.type for where, params in places.items()})
    try:
        for where, params in places.items():
            meeting.note(where, [param.grad is None for param in params])
        yield meeting
    except Exception:
        meeting.conclude(True, 0.0)
        raise
    flag = getattr(optimizer, "found_inf", None)
    own = 0.0 if flag is None else float(flag)
    failed, differ, overflowed = meeting.conclude(False, own)
    if failed:
        raise RuntimeError("another process could not take this step: its error says why")
    if differ:
        raise RuntimeError(
            "processes that hold parts of the same parameters are about to take different steps: "
            "all need gradients for the same parameters, equal step counts and equal options"
        )
    if isinstance(flag, Tensor) and overflowed != own:
        flag.fill_(overflowed)


def _places(optimizer: GeneratedOptimizer) -> dict[Placed, list[Tensor]]:
    """The parameters that are in parts, by where these lie."""
    places: dict[Placed, list[Tensor]] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            if where := placed(param):
                places.setdefault(where, []).append(param)
    return places
