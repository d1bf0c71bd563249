"""All ranks take a step, or none does: what one of them would raise or skip all agree on before.

A rank that waits in a collective for one that has raised an error waits for good. So before the
first of a step's collectives every rank says, in one small all_reduce, whether anything failed,
what it is about to do, and whether its gradients overflowed. After that a step cannot fail on one
rank alone, but for what stops a process anyhow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, distributed

from optgen.runtime.batch.batch import Batch
from optgen.runtime.protocols import Optimized
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.sharding import Sharding, sharding_of


class Consensus:
    """What a rank is about to do: what concerns a group of ranks is the same in all of them."""

    def __init__(self, devices: Mapping[Sharding, str]) -> None:
        self._cuts = {where: where.cuts() for where in devices}
        self._devices = {
            cut.group: devices[where] for where, cuts in self._cuts.items() for cut in cuts
        }
        self._digests = dict.fromkeys(self._devices, 0)

    def note(self, where: Sharding, *facts: object) -> None:
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
def reach_consensus(optimizer: Optimized) -> Iterator[Consensus]:
    """Leave the context on all ranks that hold parts of the same parameters, or on none of them.

    There is nothing to agree on where no parameter is in parts. A gradient scaler's `found_inf`
    becomes that of any rank.

    Raises:
        RuntimeError: another rank failed within its context, or is about to do something else.
    """
    places = _places(optimizer)
    consensus = Consensus({where: params[0].device.type for where, params in places.items()})
    try:
        for where, params in places.items():
            consensus.note(where, [param.grad is None for param in params])
        yield consensus
    except Exception:
        consensus.conclude(True, 0.0)
        raise
    flag = getattr(optimizer, "found_inf", None)
    own = 0.0 if flag is None else float(flag)
    failed, differ, overflowed = consensus.conclude(False, own)
    if failed:
        raise RuntimeError("another process could not take this step: its error says why")
    if differ:
        raise RuntimeError(
            "processes that hold parts of the same parameters are about to take different steps: "
            "all need gradients for the same parameters, equal step counts and equal options"
        )
    if isinstance(flag, Tensor) and overflowed != own:
        flag.fill_(overflowed)


def _places(optimizer: Optimized) -> dict[Sharding, list[Tensor]]:
    """The parameters that are in parts, by where these lie."""
    places: dict[Sharding, list[Tensor]] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            if where := sharding_of(param):
                places.setdefault(where, []).append(param)
    return places


def note_batch(consensus: Consensus, rule: Rule, lowering: str, batch: Batch) -> None:
    """Note which lowering takes a batch of sharded parameters, and with what numbers."""
    sharding = batch.dispatch_key.sharding
    if sharding is not None:
        shapes = [tuple(member.shape) for member in batch.members]
        numbers = _numbers([*map(batch.group.get, rule.hypers), *batch.steps])
        consensus.note(sharding, lowering, shapes, batch.dispatch_key.facts, numbers)


def _numbers(values: Iterable[Any]) -> list[Any]:
    """What values are, tensors among them too if no device has to be waited for.

    The text of a tensor would leave digits out, and take longer than the step.
    """
    found = []
    for value in values:
        if isinstance(value, (tuple, list)):
            found.append(_numbers(value))
        elif not isinstance(value, Tensor):
            found.append(value)
        elif value.is_cpu:
            found.append(value.tolist())
    return found
