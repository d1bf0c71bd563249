"""Compute the norm of all gradients of a model. Gradients may be sharded over ranks.

Gradients are sorted by the process groups over which they are sharded. Each rank first reduces its
gradients with equal groups to one number, so the ranks exchange one number for each set of groups.
An unsharded gradient has no groups, and no rank exchanges it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from optgen.runtime.eager.parts import zip_slices
from optgen.runtime.tensors.dtensor import is_dtensor, redistribute_gradients, to_local
from optgen.runtime.tensors.sharding import sharding_of
from optgen.runtime.torch_private import group_tensors, is_plain_class

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

ProcessGroups = tuple["ProcessGroup", ...]
ParamToGroups = Mapping[Tensor, Sequence["ProcessGroup"]]


class Gradients:
    """The nonempty local shards of the gradients of some parameters.

    If the memory of a gradient does not hold its value yet, the parameter gets an equal gradient:
    a DTensor of partial sums is reduced, and a sparse gradient is coalesced.

    Args:
        params: The parameters, in the same order on all ranks.
        param_to_pgs: The process groups of parameters that are shards but plain tensors. A
            DTensor knows its groups. Default: there are none.
    """

    def __init__(self, params: Iterable[Tensor], param_to_pgs: ParamToGroups | None = None) -> None:
        self._by_groups: dict[ProcessGroups, list[Tensor]] = {}
        self._devices: dict[ProcessGroups, torch.device] = {}
        given_groups = param_to_pgs or {}
        for param in params:
            groups = tuple(given_groups.get(param, ())) if given_groups else ()
            if not groups and not is_plain_class(type(param)):
                groups = _process_groups(param)
            gradients = self._by_groups.setdefault(groups, [])  # also on a rank without gradients
            self._devices.setdefault(groups, param.device)
            if param.grad is not None:
                values = _local_values(param)
                if values.numel():
                    gradients.append(values)

    @property
    def local_tensors(self) -> list[Tensor]:
        """All local gradients, in the order in which they are summed."""
        return [values for _, gradients in self._sorted_by_groups() for values in gradients]

    @property
    def may_exist(self) -> bool:
        """Tell whether there are gradients, here or possibly on other ranks."""
        return any(gradients or groups for groups, gradients in self._by_groups.items())

    def total_norm(self, norm_type: float, in_double: bool) -> Tensor:
        """Return the norm over all ranks, as a 0-dim tensor of float32 or float64.

        Ranks that share parameters must call this together. There is one all_reduce for each group.

        Args:
            norm_type: The p of the norm, above 0; or inf.
            in_double: Whether to compute the norm of each gradient in float64, too.
        """
        is_max_norm = norm_type == torch.inf
        ordered = self._sorted_by_groups()
        powers = {
            groups: _power(gradients, norm_type, in_double).to(self._devices[groups])
            for groups, gradients in ordered
        }
        sharded = {groups: power for groups, power in powers.items() if groups}
        if sharded:
            from optgen.runtime.sharded.reductions import PartialReduction, batched_all_reduce

            batched_all_reduce(
                PartialReduction(power, groups, is_max_norm) for groups, power in sharded.items()
            )
        if not powers:
            return torch.zeros(())
        first, *_ = powers.values()
        stacked = torch.stack([power.to(first.device) for power in powers.values()])
        total = stacked.amax() if is_max_norm else stacked.sum() ** (1 / norm_type)
        dtypes = {grad.dtype for grad in self.local_tensors}
        return total.to(torch.float64 if torch.float64 in dtypes else torch.float32)

    def scale(self, coefficient: Tensor) -> None:
        """Multiply all local gradients by a 0-dim tensor of at most 1, in place."""
        gradients = self.local_tensors
        for (device, _), (tensors,) in group_tensors([gradients]).items() if gradients else ():
            if device.type != "cpu":
                torch._foreach_mul_(tensors, coefficient.to(device, tensors[0].dtype))
            elif not coefficient.item() >= 1:  # less than 1, or NaN
                torch._foreach_mul_(tensors, coefficient.item())

    def clamp(self, limit: float) -> None:
        """Clamp every element to [-limit, limit], in place."""
        gradients = self.local_tensors
        for (tensors,) in group_tensors([gradients]).values() if gradients else ():
            torch._foreach_clamp_min_(tensors, -limit)
            torch._foreach_clamp_max_(tensors, limit)

    def _sorted_by_groups(self) -> list[tuple[ProcessGroups, list[Tensor]]]:
        """Return gradients by groups, sorted by group names, because ranks may differ in order."""
        return sorted(self._by_groups.items(), key=lambda item: [g.group_name for g in item[0]])


def _process_groups(param: Tensor) -> ProcessGroups:
    """Return the groups over whose ranks a parameter, and so its gradient, is sharded."""
    sharding = sharding_of(param)
    return () if sharding is None else tuple(axis.group for axis in sharding.sharded_axes())


def _local_values(param: Tensor) -> Tensor:
    """Return the local memory of a parameter's gradient, after reducing or coalescing it."""
    grad = param.grad
    assert grad is not None
    if not (is_plain_class(type(param)) and is_plain_class(type(grad))):
        (reduced,) = redistribute_gradients([param], [grad])
        if reduced is not grad:
            param.grad = reduced
        grad = to_local(reduced) if is_dtensor(type(reduced)) else reduced
    if grad.is_sparse:
        if not grad.is_coalesced():
            param.grad = grad = grad.coalesce()
        return grad._values()
    return grad


def _power(gradients: list[Tensor], norm_type: float, in_double: bool) -> Tensor:
    """Return the p-th power of the gradients' norm in float64; if p is inf, the norm itself."""
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    norms_by_dtype = []
    for (_, dtype), (tensors,) in group_tensors([gradients]).items():
        pieces = [piece for (piece,) in zip_slices(tensors)]
        norms = torch._foreach_norm(pieces, norm_type, dtype=_accumulation_dtype(dtype, in_double))
        norms_by_dtype.append(torch.stack(norms).double().to(gradients[0].device))
    all_norms = torch.cat(norms_by_dtype)
    return all_norms.amax() if norm_type == torch.inf else (all_norms**norm_type).sum()


def _accumulation_dtype(dtype: torch.dtype, in_double: bool) -> torch.dtype:
    """Return the dtype to accumulate in: at least float32, also for 16-bit gradients."""
    return torch.promote_types(dtype, torch.float64 if in_double else torch.float32)
