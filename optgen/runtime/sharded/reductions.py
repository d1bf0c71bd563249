"""Complete reductions of a step: over the ranks that hold shards, and over several parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, distributed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True, eq=False)
class PartialReduction:
    """A reduction of this rank's shard; each group's ranks must still combine their results."""

    tensor: Tensor  # completed in place
    groups: tuple[ProcessGroup, ...]
    is_maximum: bool = False  # the ranks' values are combined to their maximum, not their sum


def batched_all_reduce(partials: Iterable[PartialReduction]) -> None:
    """Complete partial reductions in place, by one all_reduce for each group and operation.

    Every rank of a group must call this with equally many tensors of equal shapes, in the same
    order, whatever the sizes of its shards. The ranks' values are added up in float64, even where
    a rank computed its own value in float32.
    """
    batches: dict[tuple[ProcessGroup, bool], list[Tensor]] = {}
    for partial in partials:
        for group in partial.groups:
            batches.setdefault((group, partial.is_maximum), []).append(partial.tensor)
    for (group, is_maximum), tensors in batches.items():
        flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
        _reduce_to_maximum(flat, group) if is_maximum else distributed.all_reduce(flat, group=group)
        _copy_from_flat(tensors, flat)


def _copy_from_flat(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Copy each tensor's range of a flat tensor of any dtype to the tensor, in place."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def _reduce_to_maximum(flat: Tensor, group: ProcessGroup) -> None:
    """Replace each magnitude by the greatest of all ranks; by NaN where any rank has NaN.

    A single process computes NaN in this case too. The MAX of a collective library does not
    ensure NaN: whether NaN wins depends on the order in which the library compares the ranks.
    """
    is_nan = flat.isnan()
    rows = torch.stack([flat.masked_fill(is_nan, 0.0), is_nan.double()])
    distributed.all_reduce(rows, distributed.ReduceOp.MAX, group=group)
    flat.copy_(rows[0].masked_fill_(rows[1] > 0, torch.nan))


@dataclass(frozen=True, slots=True, eq=False)
class WideReduction:
    """A request for the sum or the maximum of numbers, one for each parameter.

    * `numbers`: a float64 vector with a number for each parameter of this update. Each is the
      number of the whole parameter, not of a shard.
    * `over`: the parameters to reduce over: those of the update's group, or all.
    * `answer`: returns the result in the form that the update computes with.
    """

    numbers: Tensor
    over: Literal["group", "all"]
    is_maximum: bool  # else a sum
    answer: Callable[[Tensor], Any]


def reduce_wide(requests: Mapping[int, WideReduction], groups: Mapping[int, int]) -> dict[int, Any]:
    """Answer the requests over groups; if there are none, answer those over all parameters.

    Every update that has not ended must have a request, so that no number is missing.

    Args:
        requests: by the index of the update that made the request.
        groups: for each update, a number that stands for its param group.
    """
    over_groups = [update for update, request in requests.items() if request.over == "group"]
    groups_with_request = {groups[update] for update in over_groups}
    sharing: dict[int, list[int]] = {}  # updates that get one result, by the number of their group
    for update in over_groups or requests:
        sharing.setdefault(groups[update] if over_groups else 0, []).append(update)
    over_all = requests.keys() - set(over_groups)
    is_mixed = any(groups[update] in groups_with_request for update in over_all)
    operations = (
        {requests[update].is_maximum for update in updates} for updates in sharing.values()
    )
    if is_mixed or any(len(each) > 1 for each in operations):
        raise RuntimeError("parameters ask for different reductions: this is a defect of optgen")
    answers: dict[int, Any] = {}
    for updates in sharing.values():
        result = _reduce([requests[update] for update in updates])
        answers |= {update: requests[update].answer(result) for update in updates}
    return answers


def _reduce(requests: list[WideReduction]) -> Tensor:
    """Return the sum or the maximum of all numbers; its bits do not depend on their order."""
    device = requests[0].numbers.device
    numbers = torch.cat([request.numbers.to(device) for request in requests])
    if requests[0].is_maximum:
        return numbers.amax()
    ordered = numbers.sort().values
    # A C++ kernel that has all numbers also adds them sorted, one by one (suspending_kernel.h).
    return ordered.cumsum(0)[-1] if device.type == "cpu" else ordered.sum()
