"""Reduce numbers of several parameters: the requests of updates, and the answers to them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class WideReduction:
    """A request for the sum, or the largest, of numbers: one for each parameter.

    * `numbers`: the numbers of the parameters of this update, on one axis, in float64. They are
      complete: each is that of a whole parameter.
    * `over`: the parameters whose numbers are taken: those of the update's group, or all.
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
    asking_groups = {groups[update] for update in over_groups}
    together: dict[int, list[int]] = {}  # updates that get the same result
    for update in over_groups or requests:
        together.setdefault(groups[update] if over_groups else 0, []).append(update)
    mixed = any(groups[update] in asking_groups for update in requests.keys() - set(over_groups))
    largest = ({requests[update].largest for update in updates} for updates in together.values())
    if mixed or any(len(each) > 1 for each in largest):
        raise RuntimeError("parameters ask for different reductions: this is a defect of optgen")
    answers: dict[int, Any] = {}
    for updates in together.values():
        result = _reduced([requests[update] for update in updates])
        answers |= {update: requests[update].answer(result) for update in updates}
    return answers


def _reduced(requests: list[WideReduction]) -> Tensor:
    """Return the sum or the largest of the numbers: the same bits for any order of the numbers."""
    device = requests[0].numbers.device
    numbers = torch.cat([request.numbers.to(device) for request in requests])
    if requests[0].largest:
        return numbers.amax()
    ordered = numbers.sort().values
    # The C++ kernel adds sorted numbers one after another too, if it has all (wide_reduction.h).
    return ordered.cumsum(0)[-1] if device.type == "cpu" else ordered.sum()
