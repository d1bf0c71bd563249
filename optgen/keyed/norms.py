"""One norm of all gradients of a model, whoever holds which part of them.

What a rank holds of a gradient is known by the groups of ranks that hold the other parts: gradients
with the same groups are added up here first, so that the ranks exchange one number for each. A
gradient that every rank holds as a whole has no groups and is counted once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from optgen.runtime.eager.slices import slices
from optgen.runtime.tensors.dtensor import is_dtensor, redistribute_gradients, to_local
from optgen.runtime.tensors.sharding import sharding_of
from optgen.runtime.torch_private import group_tensors, is_plain_class

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Groups = tuple["ProcessGroup", ...]
ParamGroups = Mapping[Tensor, Sequence["ProcessGroup"]]


class Gradients:
    """What this rank holds of the gradients of some parameters: memory, not empty.

    A gradient is exchanged for an equal one where its memory is not yet its value: summands that
    the ranks have still to add up, rows of a sparse one that are named several times.

    Args:
        params: The parameters, in the same order on all ranks.
        param_to_pgs: The groups of parameters of which a rank holds a part that does not say so
            itself, as a DTensor does. Default: there are none.
    """

    def __init__(self, params: Iterable[Tensor], param_to_pgs: ParamGroups | None = None) -> None:
        self.parts: dict[Groups, list[Tensor]] = {}
        self._devices: dict[Groups, torch.device] = {}
        known = param_to_pgs or {}
        for param in params:
            groups = tuple(known.get(param, ())) if known else ()
            if not groups and not is_plain_class(type(param)):
                groups = _groups(param)
            part = self.parts.setdefault(groups, [])  # of a rank without gradients, too
            self._devices.setdefault(groups, param.device)
            if param.grad is not None:
                values = _values(param)
                if values.numel():
                    part.append(values)

    @property
    def all(self) -> list[Tensor]:
        """All of them, in the order in which they are counted."""
        return [values for _, part in self._ordered() for values in part]

    @property
    def exist(self) -> bool:
        """Tell whether there are any, or other ranks may have some."""
        return any(part or groups for groups, part in self.parts.items())

    def total_norm(self, norm_type: float, in_double: bool) -> Tensor:
        """The norm of all of them on all ranks, as a 0-dim tensor of at least float32.

        Ranks that share parameters come here together: one all_reduce for each group of ranks.

        Args:
            norm_type: The p of the norm, above 0; or inf.
            in_double: Add up in float64 from the first element on.
        """
        largest = norm_type == torch.inf
        ordered = self._ordered()
        found = {groups: _power(part, norm_type, in_double) for groups, part in ordered}
        found = {groups: power.to(self._devices[groups]) for groups, power in found.items()}
        if any(found):
            from optgen.runtime.sharded.all_reduce import Partial, batched_all_reduce

            batched_all_reduce(
                Partial(power, groups, largest) for groups, power in found.items() if groups
            )
        if not found:
            return torch.zeros(())
        first, *_ = found.values()
        powers = torch.stack([power.to(first.device) for power in found.values()])
        total = powers.amax() if largest else powers.sum() ** (1 / norm_type)
        dtypes = {grad.dtype for grad in self.all}
        return total.to(torch.float64 if torch.float64 in dtypes else torch.float32)

    def scale(self, coefficient: Tensor) -> None:
        """Multiply all of them by a number of at most 1, in place."""
        for (device, _), (tensors,) in group_tensors([self.all]).items() if self.all else ():
            if device.type != "cpu":
                torch._foreach_mul_(tensors, coefficient.to(device, tensors[0].dtype))
            elif not coefficient.item() >= 1:
                torch._foreach_mul_(tensors, coefficient.item())

    def clamp(self, limit: float) -> None:
        """Bring every element into [-limit, limit], in place."""
        for (tensors,) in group_tensors([self.all]).values() if self.all else ():
            torch._foreach_clamp_min_(tensors, -limit)
            torch._foreach_clamp_max_(tensors, limit)

    def _ordered(self) -> list[tuple[Groups, list[Tensor]]]:
        """By the names of the groups: ranks may hold different parameters."""
        return sorted(self.parts.items(), key=lambda item: [g.group_name for g in item[0]])


def _groups(param: Tensor) -> Groups:
    """The groups over whose ranks a parameter, and so its gradient, is spread."""
    sharding = sharding_of(param)
    return () if sharding is None else tuple(axis.group for axis in sharding.sharded_axes())


def _values(param: Tensor) -> Tensor:
    """The memory of a parameter's gradient, which is made to be its value if it is not."""
    grad = param.grad
    assert grad is not None
    if not (is_plain_class(type(param)) and is_plain_class(type(grad))):
        (settled,) = redistribute_gradients([param], [grad])
        if settled is not grad:
            param.grad = settled
        grad = to_local(settled) if is_dtensor(type(settled)) else settled
    if grad.is_sparse:
        if not grad.is_coalesced():
            param.grad = grad = grad.coalesce()
        return grad._values()
    return grad


def _power(part: list[Tensor], norm_type: float, in_double: bool) -> Tensor:
    """The norm of some gradients to the power of its p, or the greatest magnitude, in float64."""
    if not part:
        return torch.zeros((), dtype=torch.float64)
    stacked = []
    for (_, dtype), (tensors,) in group_tensors([part]).items():
        pieces = [piece for (piece,) in slices(tensors)]
        norms = torch._foreach_norm(pieces, norm_type, dtype=_wide(dtype, in_double))
        stacked.append(torch.stack(norms).double().to(part[0].device))
    found = torch.cat(stacked)
    return found.amax() if norm_type == torch.inf else (found**norm_type).sum()


def _wide(dtype: torch.dtype, in_double: bool) -> torch.dtype:
    """What is added up in: a norm of 16-bit numbers is not rounded to 16 bits."""
    return torch.promote_types(dtype, torch.float64 if in_double else torch.float32)
