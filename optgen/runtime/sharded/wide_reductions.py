"""Reduce numbers of several parameters: the requests of updates, and the answers to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor


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
    # A C++ kernel that has all numbers also adds them sorted, one by one (wide_reduction.h).
    return ordered.cumsum(0)[-1] if device.type == "cpu" else ordered.sum()
