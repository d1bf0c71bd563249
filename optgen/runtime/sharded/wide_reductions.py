"""Reduce numbers of several parameters: the requests of updates, and the answers to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class WideReduction:
    """A request for the sum or the largest of numbers; each parameter has one number.

    * `numbers`: the numbers of the parameters of this update, on one axis, in float64. They are
      complete: each is that of a whole parameter.
    * `over`: the parameters to reduce over: those of the update's group, or all.
    * `answer`: returns the result in the form that the update computes with.
    """

    numbers: Tensor
    over: Literal["group", "all"]
    largest: bool
    answer: Callable[[Tensor], Any]


def reduce_wide(requests: Mapping[int, WideReduction], groups: Mapping[int, int]) -> dict[int, Any]:
    """Answer the requests over groups; if there are none, answer those over all parameters.

    Every update that has not ended must have a request, so that no number is missing.

    Args:
        requests: by the updates that made them.
        groups: the group of each update.
    """
    over_groups = [update for update, request in requests.items() if request.over == "group"]
    groups_with_request = {groups[update] for update in over_groups}
    together: dict[int, list[int]] = {}  # updates that get the same result
    for update in over_groups or requests:
        together.setdefault(groups[update] if over_groups else 0, []).append(update)
    over_all = requests.keys() - set(over_groups)
    is_mixed = any(groups[update] in groups_with_request for update in over_all)
    operations = ({requests[update].largest for update in updates} for updates in together.values())
    if is_mixed or any(len(each) > 1 for each in operations):
        raise RuntimeError("parameters ask for different reductions: this is a defect of optgen")
    answers: dict[int, Any] = {}
    for updates in together.values():
        result = _reduce([requests[update] for update in updates])
        answers |= {update: requests[update].answer(result) for update in updates}
    return answers


def _reduce(requests: list[WideReduction]) -> Tensor:
    """Return the sum or the largest of the numbers: the same bits for any order of the numbers."""
    device = requests[0].numbers.device
    numbers = torch.cat([request.numbers.to(device) for request in requests])
    if requests[0].largest:
        return numbers.amax()
    ordered = numbers.sort().values
    # A C++ kernel that has all numbers also adds them sorted, one by one (wide_reduction.h).
    return ordered.cumsum(0)[-1] if device.type == "cpu" else ordered.sum()
