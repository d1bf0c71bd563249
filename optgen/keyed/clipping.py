"""Clip gradients before a step, by value or by the norm of all gradients on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, unique
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from optgen.keyed.fused import updates_in_backward
from optgen.keyed.keyed import KeyedOptimizer, OptimizerWrapper
from optgen.runtime.eager.parts import zip_slices
from optgen.runtime.light_optimizer import with_step_hooks
from optgen.runtime.tensors.dtensor import is_dtensor, redistribute_gradients, to_local
from optgen.runtime.tensors.sharding import sharding_of
from optgen.runtime.torch_private import group_tensors, is_plain_class

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


use_64bit_grad_norm: bool = False
"""If True, compute each gradient's norm in float64, too, not only the sum of the norms."""


@unique
class GradientClipping(Enum):
    """Way to clip gradients: by their total norm, by the value of each element, or not at all."""

    NORM = "norm"
    VALUE = "value"
    NONE = "none"


class GradientClippingOptimizer(OptimizerWrapper):
    """Wrapper that clips the gradients of a keyed optimizer before its step.

    One norm covers all parameters of all groups. Every rank contributes its shard of a sharded
    DTensor; a replicated DTensor counts once. So the norm is that of a single process. All ranks
    of the mesh must take the step, with or without gradients. If a parameter is on the meta device,
    nothing is clipped. Sparse gradients are coalesced.

    A step with a closure clips the gradients after the closure has returned, and only then.

    Args:
        optimizer (KeyedOptimizer): The optimizer that takes the steps.
        clipping (GradientClipping): How to clip. Default: not at all.
        max_gradient (float): The largest norm, or magnitude of an element, that is not clipped.
        norm_type (float or str): The p of the norm, above 0, or "inf".
        enable_global_grad_clip (bool): Whether to use `param_to_pgs`. Default: False; then a
            parameter that is no DTensor counts as unsharded.
        param_to_pgs (dict): For plain tensors that are shards: the process groups over which each
            is sharded. All ranks of such a group must have such parameters.
        track_grad_norm (bool): Whether to compute `last_total_grad_norm` if not clipping by norm.

    Raises:
        ValueError: `norm_type` is not above 0; or the optimizer is to clip or to track the
            norm, but updates in the backward pass, when not all gradients are known.
    """

    def __init__(
        self,
        optimizer: KeyedOptimizer,
        clipping: GradientClipping = GradientClipping.NONE,
        max_gradient: float = 0.1,
        norm_type: float | str = 2.0,
        enable_global_grad_clip: bool = False,
        param_to_pgs: Mapping[Tensor, Sequence[ProcessGroup]] | None = None,
        track_grad_norm: bool = False,
    ) -> None:
        super().__init__(optimizer)
        self._clipping = GradientClipping(clipping)
        self._max_gradient = max_gradient
        self._norm_type = float(norm_type)
        self._param_to_pgs = param_to_pgs if enable_global_grad_clip else None
        self._needs_norm = self._clipping is GradientClipping.NORM or track_grad_norm
        self._last_total_grad_norm: Tensor | None = None
        if not self._norm_type > 0:
            raise ValueError(f"Invalid norm_type value: {norm_type}; it must be above 0, or inf")
        self._check_not_updated_in_backward()

    def _check_not_updated_in_backward(self) -> None:
        if self._clipping is GradientClipping.NONE and not self._needs_norm:
            return
        if updates_in_backward(self._optimizer):
            raise ValueError(
                "The optimizer updates parameters in the backward pass, before all gradients are "
                "known: their norm is not known then, and no gradient is left in a step. Wrap "
                "the optimizers of the other parameters instead, or clip by value in the backward "
                "pass: UpdateInBackward(clip_value=…)"
            )

    @with_step_hooks
    def step(self, closure: Any = None) -> Any:
        """Clip the gradients, or those of the closure, and take a step; return the loss."""
        if closure is None:
            self._clip()
            return self._optimizer.step(closure=None)

        def closure_that_clips() -> Any:
            loss = closure()
            self._clip()
            return loss

        return self._optimizer.step(closure=closure_that_clips)

    @property
    def last_total_grad_norm(self) -> Tensor | None:
        """The norm of all gradients in the last step, before clipping; a 0-dim tensor.

        None before the first step; if there is no gradient and no parameter is sharded; if a
        parameter is on the meta device; or if neither clipping nor `track_grad_norm` needs it.
        """
        return self._last_total_grad_norm

    @torch.no_grad()
    def compute_total_grad_norm(self) -> tuple[Tensor, list[Tensor]]:
        """Return the norm of all gradients, a 0-dim tensor, and the gradients of this rank.

        Nothing is clipped. All ranks that share parameters must call this together.
        """
        gradients = self._gradients()
        return self._norm(gradients), gradients.local_tensors

    @torch.no_grad()
    def clip_grad_norm_(self) -> Tensor:
        """Clip by the norm of all gradients; return the norm before clipping, a 0-dim tensor."""
        return self._clip_norm(self._gradients())

    def _clip_norm(self, gradients: Gradients) -> Tensor:
        total_norm = self._norm(gradients)
        gradients.scale((self._max_gradient / (total_norm + 1e-6)).clamp(max=1.0))
        return total_norm

    @torch.no_grad()
    def _clip(self) -> None:
        self._last_total_grad_norm = None
        if self._clipping is GradientClipping.NONE and not self._needs_norm:
            return
        if any(param.is_meta for param in self._params()):
            return
        gradients = self._gradients()
        if not gradients.may_exist:
            return
        if self._clipping is GradientClipping.NORM:
            self._last_total_grad_norm = self._clip_norm(gradients)
            return
        if self._needs_norm:
            self._last_total_grad_norm = self._norm(gradients)
        if self._clipping is GradientClipping.VALUE:
            gradients.clamp(self._max_gradient)

    def _norm(self, gradients: Gradients) -> Tensor:
        return gradients.total_norm(self._norm_type, use_64bit_grad_norm)

    def _gradients(self) -> Gradients:
        return Gradients(self._params(), self._param_to_pgs)

    def _params(self) -> Iterable[Tensor]:
        """Return each parameter once, in the groups' order. Wrappers may replace them."""
        return dict.fromkeys(p for group in self.param_groups for p in group["params"])


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
