"""Sharpness-aware minimization: a wrapper that takes the gradient at a second point.

The steps are those of the authors' class of the same name, https://github.com/davda54/sam, and of
the papers: SAM (Foret et al., 2021) and ASAM (Kwon et al., 2021).
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from optgen.runtime.joint_step import OptimizerOfMembers
from optgen.runtime.light_optimizer import needs_closure, unchanged_after_error, with_step_hooks
from optgen.runtime.tensors.dtensor import redistribute_gradients, to_locals
from optgen.runtime.tensors.sharding import sharding_of
from optgen.runtime.torch_private import called_to_init_state, foreach_clone, group_tensors

RHO, ADAPTIVE = "sam_rho", "sam_adaptive"
"""Keys of param groups. The base may have a hyperparameter `rho` of its own, as Adadelta has."""
_TINY = 1e-12  # added to the norm, as the authors do
_SMALL = 1e-30  # a factor that float32 holds, as its reciprocal


class SAM(OptimizerOfMembers):
    r"""Sharpness-aware minimization (Foret et al., 2021): the gradient where the loss is worse.

    A step climbs from the weights along the gradient, takes a second gradient there, goes back, and
    lets another optimizer step from the weights with the second gradient:

    .. math::
        \begin{aligned}
            &\hat{\theta} \leftarrow \theta + \rho \, g / (\lVert g \rVert_2 + 10^{-12}),
                \quad g = \nabla f(\theta) \\
            &\theta \leftarrow \operatorname{step}(\theta, \nabla f(\hat{\theta}))
        \end{aligned}

    The norm is that of all gradients of all groups, and of all ranks under FSDP2. With `adaptive`
    (ASAM; Kwon et al., 2021) the norm is that of :math:`|\theta| g`, and the way is
    :math:`|\theta|^2 g`. Groups with `maximize=True` climb along :math:`-g`. Of weights of 16 bits,
    the ways are computed in float32, and rounded once.

    Param groups, states and checkpoints are those of the base. The groups have two more keys,
    `sam_rho` and `sam_adaptive`; a group that has them already keeps its own values.

    Args:
        base: The optimizer that steps: optgen's, torch's or another.
        rho (float): The length of the climb, at least 0. Default: 0.05.
        adaptive (bool): Climb in proportion to the squares of the weights. Default: False.

    Raises:
        ValueError: `rho` is below 0, or not finite.
        TypeError: The base is no optimizer, its step needs a closure, as LBFGS's does, or it uses
            gradients in the backward pass. Or `rho` is no number, or `adaptive` no bool.

    Paper: https://arxiv.org/abs/2010.01412
    """

    needs_closure = True

    _step_supports_amp_scaling = True
    """torch's `GradScaler` then calls `step` after an overflow, too, so weights are put back."""

    def __init__(self, base: Optimizer, rho: float = 0.05, adaptive: bool = False) -> None:
        if not isinstance(base, Optimizer):
            raise TypeError(
                f"SAM takes an optimizer, not {base!r}: make the base first, as in "
                "SAM(AdamW(model.parameters(), lr=1e-3), rho=0.05)"
            )
        if needs_closure(base):
            raise TypeError(
                f"{type(base).__name__} calls the closure itself, and SAM needs a base that steps "
                "with the gradients that it finds"
            )
        _check_gradients_stay(base)
        _check_options(rho, adaptive)
        self.__setstate__(
            {"members": (base,), "defaults": {**base.defaults, RHO: rho, ADAPTIVE: adaptive}}
        )
        self._complete_groups()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._weights: list[tuple[Tensor, Tensor]] = []  # what climbs, and a local copy of it
        self._is_between_halves = False  # there may be no weights, if there were no gradients

    def __getstate__(self) -> dict[str, Any]:
        return {"members": self.members, "defaults": self.defaults}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base!r})"

    @property
    def base(self) -> Any:
        """The optimizer that steps."""
        return self.members[0]

    def notes(self) -> list[str]:
        """Return what `optgen.explain` says before the groups of the base."""
        return ["SAM: two gradients for each step, which the base takes:"]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the base; it may have `sam_rho` and `sam_adaptive`."""
        _check_options(*(param_group.get(key, self.defaults[key]) for key in (RHO, ADAPTIVE)))
        self.base.add_param_group(param_group)
        self._complete_groups()

    def _complete_groups(self) -> None:
        for group in self.param_groups:
            for key in (RHO, ADAPTIVE):
                group.setdefault(key, self.defaults[key])
            _check_options(group[RHO], group[ADAPTIVE])

    @with_step_hooks
    def step(self, closure: Callable[[], Any] | None = None, **inputs: Any) -> Any:
        """Take a step.

        With a closure, the step calls it twice, and clears the gradients before each call. If a
        call fails, the weights and the states are as before.

        Without a closure, this is the second half of a step that `first_step` has begun. It is what
        `torch.amp.GradScaler` calls. If its scaler has found an overflow, nothing but the weights
        changes, and they are those from before `first_step`.

        Args:
            closure: Reevaluates the model, calls `backward` and returns the loss.
            **inputs: Extra inputs of the base's rule, such as `hessian`.

        Returns:
            The loss of the first call, or None without a closure.

        Raises:
            RuntimeError: There is neither a closure, nor a `first_step` before; or a scaler gives
                a closure. Nothing has changed.
        """
        loss = None
        if closure is not None:
            self._refuse_scaler()
            self.restore()
            loss = self._call(closure)
            self.first_step()
            try:
                self._call(closure)
            except BaseException:
                self.restore()
                raise
        elif not self._is_between_halves and not called_to_init_state():
            raise RuntimeError(
                "SAM.step() needs a closure, or first_step() before it and a second backward pass "
                "between the two"
            )
        self.restore()
        if self._may_step():
            self.base.step(**inputs)
        return loss

    def _refuse_scaler(self) -> None:
        """Raise a RuntimeError if a scaler calls the step, and end what it has set."""
        inputs = [vars(self).pop(name, None) for name in ("found_inf", "grad_scale")]
        if any(each is not None for each in inputs):
            raise RuntimeError(
                "GradScaler.step(SAM, closure) would use gradients of a scaled loss: call "
                "first_step() after the first scaled backward pass, and GradScaler.step(SAM) "
                "without a closure after the second"
            )

    def _call(self, closure: Callable[[], Any]) -> Any:
        """Call a closure without old gradients."""
        self.zero_grad()
        with torch.enable_grad():
            return closure()

    @torch.no_grad()
    def first_step(self, zero_grad: bool = True) -> None:
        """Climb from the weights along the present gradients.

        Gradients may be those of a scaled loss, because the length of the climb does not depend on
        their size. If their norm is not finite, or 0, the weights stay.

        Args:
            zero_grad: Whether to clear the gradients, as the second backward pass needs it.

        Raises:
            RuntimeError: There was a `first_step` already, or a gradient is sparse. Nothing has
                changed.
        """
        if self._is_between_halves:
            raise RuntimeError(
                "first_step() was called twice: call second_step() after the second backward pass, "
                "or restore() to go back"
            )
        _check_gradients_stay(self.base)
        self._complete_groups()
        ways = [_Ways(group) for group in self.param_groups]
        length = _norm(ways)
        params = [param for each in ways for param in each.params]
        copies = foreach_clone(to_locals(params)) if params else ()
        self._weights = [*zip(params, copies, strict=True)]
        self._is_between_halves = True
        if length > 0 and math.isfinite(length):
            try:
                for each in ways:
                    each.climb(length)
            except BaseException:
                self.restore()
                raise
        if zero_grad:
            self.zero_grad()

    def second_step(self, zero_grad: bool = False, **inputs: Any) -> None:
        """Go back to the weights, and let the base step with the present gradients.

        Args:
            zero_grad: Whether to clear the gradients afterwards.
            **inputs: Extra inputs of the base's rule.

        Raises:
            RuntimeError: There was no `first_step`.
        """
        self.step(**inputs)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to the weights from before `first_step`; without one, do nothing."""
        weights, self._weights = self._weights, []
        self._is_between_halves = False
        if not weights:
            return
        params = to_locals([param for param, _ in weights])
        torch._foreach_copy_(params, [before for _, before in weights])

    @torch.no_grad()
    def _may_step(self) -> bool:
        """Unscale the gradients if a scaler asks for it; tell whether none has overflowed."""
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return False
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            grads = [param.grad for group in self.param_groups for param in group["params"]]
            factor = scale.double().reciprocal().item()
            torch._foreach_mul_(to_locals([each for each in grads if each is not None]), factor)
        return True

    def train(self) -> None:
        """Put the trained weights in place, if the base has a method `train`."""
        self._switch("train")

    def eval(self) -> None:
        """Put averaged weights in place, if the base has a method `eval`."""
        self._switch("eval")

    def _switch(self, mode: str) -> None:
        if self._is_between_halves:
            raise RuntimeError(
                f"{mode}() between the halves of a step: call second_step() or restore() first"
            )
        if hasattr(self.base, mode):
            getattr(self.base, mode)()

    def state_dict(self) -> dict[str, Any]:
        """Return the states and groups of the base, with `sam_rho` and `sam_adaptive`."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        packed: dict[str, Any] = self.base.state_dict()
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            replacement = post_hook(self, packed)
            packed = packed if replacement is None else replacement
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of `state_dict`, or of the base alone; an error changes nothing.

        A step that `first_step` has begun is given up, and the weights stay as they are.
        """
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            replacement = pre_hook(self, state_dict)
            state_dict = state_dict if replacement is None else replacement
        before = [{key: group[key] for key in (RHO, ADAPTIVE)} for group in self.param_groups]
        with unchanged_after_error(self.members):
            self.base.load_state_dict(state_dict)
            for group, own in zip(self.param_groups, before, strict=True):
                for key, value in own.items():
                    group.setdefault(key, value)
                _check_options(group[RHO], group[ADAPTIVE])
        self._weights, self._is_between_halves = [], False
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)


class _Ways:
    """The parameters of a group that have gradients, and the way that each of them climbs."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.all_params: list[Tensor] = group["params"]
        self.params = [param for param in self.all_params if param.grad is not None]
        grads = [param.grad for param in self.params if param.grad is not None]
        for grad in grads:
            if grad.layout != torch.strided:
                raise RuntimeError(
                    "SAM takes dense gradients: make the embedding with sparse=False"
                )
        self.rho, self.is_adaptive = float(group[RHO]), group[ADAPTIVE]
        self.sign = -1.0 if group.get("maximize", False) else 1.0
        self.locals = to_locals(self.params)
        self.grads = to_locals(redistribute_gradients(self.params, grads))

    def lengths(self) -> list[Tensor]:
        """Return the local tensors whose norm is the length of the way before it is scaled."""
        if not (self.is_adaptive and self.grads):
            return self.grads
        return list(torch._foreach_mul(self._sizes(), _widened(self.grads)))

    def climb(self, length: float) -> None:
        """Add the way to the parameters, scaled to the length `rho`."""
        if not self.grads:
            return
        length += _TINY
        scale = self.sign * self.rho / length
        if not (self.is_adaptive or self._has_16_bits()) and _SMALL < abs(scale) < 1 / _SMALL:
            torch._foreach_add_(self.locals, self.grads, alpha=scale)
            return
        # By 2 factors, so that neither a factor nor a product leaves the range of float32.
        root = math.sqrt(length)
        ways = torch._foreach_mul(
            self.lengths() if self.is_adaptive else _widened(self.grads), 1 / root
        )
        torch._foreach_mul_(ways, 1 / root)
        torch._foreach_mul_(ways, self.sign * self.rho)
        if self.is_adaptive:
            torch._foreach_mul_(ways, self._sizes())
        torch._foreach_add_(self.locals, ways)

    def _sizes(self) -> list[Tensor]:
        return _widened(list(torch._foreach_abs(self.locals)))

    def _has_16_bits(self) -> bool:
        return any(_wide(each.dtype) != each.dtype for each in (*self.locals, *self.grads))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which ways are computed: float32 for 16 bits."""
    return torch.promote_types(dtype, torch.float32)


def _widened(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [each.to(_wide(each.dtype)) for each in tensors]


def _norm(ways: Sequence[_Ways]) -> float:
    """Return the norm of all ways together. Ranks complete the sums of shards together."""
    from optgen.runtime.sharded.reductions import PartialReduction, batched_all_reduce

    by_ranks: dict[Any, list[Tensor]] = defaultdict(list)
    devices: dict[Any, torch.device] = {}
    for each in ways:
        for param in each.all_params:  # a rank without a gradient takes part in the sum
            devices.setdefault(_ranks(param), param.device)
        for param, tensor in zip(each.params, each.lengths(), strict=True):
            if tensor.numel():
                by_ranks[_ranks(param)].append(tensor)
    squares = {
        ranks: _square(by_ranks[ranks]).to(device)
        for ranks, device in sorted(devices.items(), key=lambda item: _names(item[0]))
    }
    batched_all_reduce(
        PartialReduction(square, ranks, False) for ranks, square in squares.items() if ranks
    )
    return math.sqrt(sum(square.item() for square in squares.values()))


def _ranks(param: Tensor) -> tuple[Any, ...]:
    """Return the process groups over whose ranks a parameter is sharded; () if it is whole."""
    sharding = sharding_of(param)
    return () if sharding is None else tuple(axis.group for axis in sharding.sharded_axes())


def _names(ranks: Iterable[Any]) -> list[str]:
    return [each.group_name for each in ranks]


def _square(tensors: list[Tensor]) -> Tensor:
    """Return the sum of the squares of tensors; float64 holds squares that float32 cannot."""
    total = torch.zeros((), dtype=torch.float64)
    for (device, dtype), (same,) in group_tensors([tensors]).items() if tensors else ():
        wide = torch.promote_types(dtype, torch.float64)
        norms = torch._foreach_norm(same, 2, dtype=wide)
        total = total.to(device) + torch.stack(list(norms)).abs().double().square().sum()
    return total


def _check_options(rho: Any, adaptive: Any) -> None:
    """Raise an error if `rho` is no finite number from 0 on, or `adaptive` is no bool."""
    if isinstance(rho, Tensor):
        is_number = rho.numel() == 1 and not rho.is_complex()
    else:
        is_number = isinstance(rho, Real) and not isinstance(rho, bool)
    if not is_number:
        raise TypeError(f"rho of SAM should be a number, not {rho!r}")
    try:
        value = float(rho)
    except OverflowError:
        value = math.inf
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"Invalid rho, should be non-negative: {value:g}; and it should be finite")
    if not isinstance(adaptive, bool):
        raise TypeError(f"adaptive of SAM should be True or False, not {adaptive!r}")


def _check_gradients_stay(base: Optimizer) -> None:
    """Raise a TypeError if gradients are used in the backward pass: SAM takes two passes a step."""
    offloading = sys.modules.get("optgen.offloading.optimizer")  # no import, no such optimizer
    waiting = [base]
    while waiting:
        optimizer = waiting.pop()
        waiting += getattr(optimizer, "members", ())
        if offloading is not None and isinstance(optimizer, offloading.OffloadedOptimizer):
            raise TypeError(
                "SAM takes no offloaded optimizer: it uses the gradients in the backward pass, and "
                "would use those of both passes of SAM; step it without SAM"
            )
    params = (param for group in base.param_groups for param in group["params"])
    if any(hasattr(param, "_in_backward_optimizers") for param in params):
        raise TypeError(
            "SAM takes no parameters that are updated in the backward pass: both passes of SAM "
            "would update them; step them without SAM"
        )
