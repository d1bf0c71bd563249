"""Clip gradients before a step, by value or by the norm of all gradients on all ranks."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, unique
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from optgen.keyed.fused import updates_in_backward
from optgen.keyed.gradient_norms import Gradients
from optgen.keyed.keyed_optimizer import KeyedOptimizer
from optgen.keyed.wrappers import OptimizerWrapper
from optgen.runtime.light_optimizer import with_step_hooks

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
        param_to_pgs: "Mapping[Tensor, Sequence[ProcessGroup]] | None" = None,
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
