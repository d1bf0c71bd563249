"""Reach a consensus before a sharded step: all ranks take the step, or none does.

If one rank raises an error, a rank that waits for it in a collective waits forever. So before a
step updates anything, each group of ranks runs one small all_reduce. In it, each rank tells whether
it failed, what it is about to do, and whether its gradients overflowed. After that, a step fails on
one rank alone only if the rank's process itself is stopped.

Before all checks, gradients get the placements of their parameters. A redistribution is a
collective: a rank that begins it waits for the other ranks. A check can fail on one rank alone. So
the redistributions come first, and a rank that fails later has taken part in them. In a step with a
consensus, the ranks compare placements first. In a step without a consensus, they cannot: the
gradients of a parameter must have the same placements on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import Tensor, distributed

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.gradients import ParamsAndGradients, params_and_gradients
from optgen.runtime.rule import OptimizerLike, Rule
from optgen.runtime.tensors.dtensor import (
    misplaced_gradients,
    placement_text,
    redistribute_gradients,
)
from optgen.runtime.tensors.sharding import Sharding, sharding_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Consensus:
    """A digest, for each group of ranks, of what this rank is about to do.

    Ranks of a group that are about to take the same step have equal digests.
    """

    def __init__(self, devices: Mapping[Sharding, str]) -> None:
        self._groups: dict[Sharding, list[ProcessGroup]] = {}
        self._devices: dict[ProcessGroup, str] = {}
        for sharding, device in devices.items():
            groups = [axis.group for axis in sharding.sharded_axes()]
            self._groups[sharding] = groups
            self._devices.update(dict.fromkeys(groups, device))
        self._digests = dict.fromkeys(self._devices, 0)
        self.refused = False  # whether the ranks have agreed to take no step

    def note(self, sharding: Sharding, *values: object) -> None:
        """Add values that the ranks of a sharding compare as text, to tell if their steps agree."""
        text = repr((sharding.placements, values)).encode()
        for group in self._groups[sharding]:
            self._digests[group] = crc32(text, self._digests[group])

    def note_everywhere(self, *values: object) -> None:
        """Add values that the ranks of every sharding compare."""
        for sharding in self._groups:
            self.note(sharding, *values)

    def agree(self, overflowed: float = 0.0) -> float:
        """Return the greatest `overflowed` of all ranks, if all can go on with the same step.

        `overflowed` is 1.0 if a gradient scaler found an overflow on this rank, else 0.0.

        Raises:
            RuntimeError: another rank failed, or is about to take another step.
        """
        failed, differ, overflowed = self.ask_ranks(failed=False, overflowed=overflowed)
        self.refused = failed or differ
        if failed:
            raise RuntimeError(
                "another rank could not take this step: the error on that rank says why"
            )
        if differ:
            raise RuntimeError(
                "ranks that hold shards of the same parameters are about to take different steps: "
                "all need gradients for the same parameters, with the same placements, equal step "
                "counts and equal options"
            )
        return overflowed

    def ask_ranks(self, failed: bool, overflowed: float) -> tuple[bool, bool, float]:
        """Return whether a rank failed, whether digests differ, and the greatest `overflowed`.

        A group with a CPU backend uses a CPU tensor. Other groups answer on their device, for which
        the host waits once.
        """
        answers: Tensor | None = None  # of the groups so far
        for group, device in self._devices.items():
            place = "cpu" if "cpu:" in distributed.get_backend_config(group) else device
            digest = float(self._digests[group])  # float64 holds 32 bits exactly
            maxima = _vector([failed, 0.0, overflowed, digest, -digest], place)
            if answers is not None:
                torch.maximum(maxima[:3], answers.to(place), out=maxima[:3])
            distributed.all_reduce(maxima, distributed.ReduceOp.MAX, group=group)
            # The greatest of the negated digests is the least digest, negated.
            maxima[1] += maxima[3] != -maxima[4]
            answers = maxima[:3]
        if answers is None:
            return failed, False, overflowed
        any_failed, any_differ, any_overflowed = answers.tolist()
        return bool(any_failed), bool(any_differ), any_overflowed


def _vector(numbers: list[float], device: str) -> Tensor:
    """Return numbers in float64 on a device, for which the host does not wait."""
    return torch.stack([torch.full((), n, dtype=torch.float64, device=device) for n in numbers])


@contextmanager
def reach_consensus(optimizer: OptimizerLike) -> Iterator[Consensus]:
    """Leave the context normally on all ranks that share sharded parameters, or on none of them.

    Without sharded parameters, no collective runs. At the end, a gradient scaler's `found_inf` is
    the greatest `found_inf` of all ranks.

    Raises:
        RuntimeError: another rank failed within its context, or is about to take another step.
    """
    by_sharding = _by_sharding(optimizer)
    devices = {sharding: params[0].device.type for sharding, params in by_sharding.items()}
    consensus = Consensus(devices)
    try:
        for sharding, params in by_sharding.items():
            consensus.note(sharding, [param.grad is None for param in params])
        yield consensus
    except Exception:
        if not consensus.refused:
            consensus.ask_ranks(failed=True, overflowed=0.0)
        raise
    found_inf = getattr(optimizer, "found_inf", None)
    own_overflowed = 0.0 if found_inf is None else float(found_inf)
    overflowed = consensus.agree(own_overflowed)
    if isinstance(found_inf, Tensor) and overflowed != own_overflowed:
        found_inf.fill_(overflowed)


def _by_sharding(optimizer: OptimizerLike) -> dict[Sharding, list[Tensor]]:
    """Return the sharded parameters by their sharding."""
    by_sharding: dict[Sharding, list[Tensor]] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            if sharding := sharding_of(param):
                by_sharding.setdefault(sharding, []).append(param)
    return by_sharding


def note_batch(consensus: Consensus, rule: Rule, lowering: str, batch: Batch) -> None:
    """Note what the ranks must agree on in a batch: lowering, shapes, facts and numbers."""
    sharding = batch.dispatch_key.sharding
    if sharding is not None:
        shapes = [tuple(seen.shape) for seen in batch.seen_params]
        numbers = _known_numbers([*map(batch.group.get, rule.hypers), *batch.step_counts])
        consensus.note(sharding, lowering, shapes, batch.dispatch_key.facts, numbers)


def _known_numbers(values: Iterable[Any]) -> list[Any]:
    """Return the values; replace CPU tensors by numbers, and leave out tensors on other devices.

    To read such a tensor, the host would wait for its device. The text of a CPU tensor would
    lack digits, and would take longer to make than the step.
    """
    numbers = []
    for value in values:
        if isinstance(value, (tuple, list)):
            numbers.append(_known_numbers(value))
        elif not isinstance(value, Tensor):
            numbers.append(value)
        elif value.is_cpu:
            numbers.append(value.tolist())
    return numbers


def placed_gradients(
    optimizer: OptimizerLike,
    step_grads: Sequence[Tensor | None] | None,
    consensus: Consensus | None,
) -> list[ParamsAndGradients]:
    """Return the gradients of every group, each with the placements of its parameter.

    `step_grads` are gradients for the only group; None stands for the parameters' own gradients.

    Raises:
        RuntimeError: A gradient cannot be placed as its parameter is, or the ranks of a consensus
            are about to take different steps.
    """
    groups = [params_and_gradients(group, step_grads) for group in optimizer.param_groups]
    if not any(misplaced_gradients(*group) for group in groups):
        return groups
    if consensus:
        consensus.note_everywhere([list(map(placement_text, grads)) for _, grads in groups])
        consensus.agree()
    return [(params, redistribute_gradients(params, grads)) for params, grads in groups]
