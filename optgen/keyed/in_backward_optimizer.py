"""The optimizer that updates the parameters of a module in the backward pass, bucket by bucket."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from optgen.contract.states import VIEW
from optgen.keyed.apply_optimizer_in_backward import (
    after_backward,
    backward_pass,
    call_when_reduced,
    ddp_modules,
    mark,
    register_update_hook,
    unmark,
)
from optgen.keyed.checkpoint import check_state_by_parameter
from optgen.keyed.clipping import Gradients
from optgen.keyed.create_state import create_state, zero_gradients
from optgen.keyed.fused import FusedOptimizer
from optgen.runtime.light_optimizer import needs_closure, with_step_hooks
from optgen.runtime.rule import Rule

Group = dict[str, Any]


class Bucket:
    """Parameters that are updated together, when all their gradients are ready."""

    def __init__(self, optimizer: Optimizer, group: Group, clip_value: float | None) -> None:
        self.optimizer = optimizer
        self.params: list[Tensor] = optimizer.param_groups[0]["params"]
        self.ready_count = 0  # gradients that are ready but not used yet
        self._public_group = group  # which schedulers change
        self._clip_value = clip_value

    def count_gradient(self) -> None:
        """Count a gradient that is ready; update if it is the last one of the bucket."""
        self.ready_count += 1
        if self.ready_count == len(self.params):
            self.update()

    @torch.no_grad()
    def update(self) -> None:
        """Take a step with the gradients that are ready, and free them."""
        self.copy_options()
        if self._clip_value is not None:
            Gradients(self.params).clamp(self._clip_value)
        self.optimizer.step()
        self.free()

    def copy_options(self) -> None:
        """Give the bucket's optimizer the current options of the public group."""
        self.optimizer.param_groups[0].update(
            {key: value for key, value in self._public_group.items() if key != "params"}
        )

    def is_of(self, group: Group) -> bool:
        """Tell whether the parameters are those of a public group."""
        return self._public_group is group

    def free(self) -> None:
        """Drop the gradients."""
        self.ready_count = 0
        for param in self.params:
            param.grad = None


class GradientHandler:
    """Object whose `step` the backward pass calls when one parameter's gradient is ready."""

    def __init__(self, name: str, param: Tensor, bucket: Bucket, optimizer: InBackwardOptimizer):
        self._name, self._param, self._bucket, self._optimizer = name, param, bucket, optimizer

    def step(self) -> None:
        """Use the gradient, now or when the gradients of its bucket are complete."""
        self._optimizer.record(self._name, self._param)
        self._bucket.count_gradient()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a copied parameter gets a new handler


class InBackwardOptimizer(FusedOptimizer):
    """Optimizer that updates parameters in the backward pass, and holds their state and groups.

    Every update of a bucket reads the current values of `param_groups`.

    Args:
        params (Mapping[str, Tensor]): Parameters by name.
        optimizer_class: Makes an optimizer from a list of parameters.
        bucket_bytes (int): The most bytes of gradients that may wait for one update. Sharded
            parameters count with their full size.
        clip_value (float or None): Elements of gradients are clipped to this magnitude.
        groups (iterable or None): Groups of the parameters; None for one group.
        hyper (Mapping): Further arguments of the class.
        module (Module or None): The module, which may contain DistributedDataParallel.

    Raises:
        ValueError: The groups have other parameters, or lack some.
        TypeError: The optimizer is no class; it keeps states in its groups or in codes; its rule
            reduces over several parameters; or its step needs a closure.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        optimizer_class: Callable[..., Optimizer],
        bucket_bytes: int = 0,
        clip_value: float | None = None,
        groups: Iterable[Mapping[str, Any]] | None = None,
        hyper: Mapping[str, Any] | None = None,
        module: nn.Module | None = None,
    ) -> None:
        check_is_class(optimizer_class)
        options = dict(hyper or {})
        params_or_groups = (
            list(params.values()) if groups is None else [dict(group) for group in groups]
        )
        # This optimizer has the state and the groups. Only the buckets' optimizers take steps.
        public_optimizer = optimizer_class(params_or_groups, **options)
        check_state_by_parameter(public_optimizer)
        check_updates_one_by_one(public_optimizer)
        super().__init__(params, public_optimizer.state, public_optimizer.param_groups)
        self.defaults.update(public_optimizer.defaults)
        self._class_and_options = (optimizer_class, options)
        self._with_gradient: set[Tensor] = set()  # since the last step
        # The backward pass that will call _update_incomplete_buckets at its end; None if there is
        # none. It stays here if the pass fails.
        self._running_pass: int | None = None
        self._check_groups()
        self._buckets = [
            self._make_bucket(bucket_params, group, clip_value)
            for group in self.param_groups
            for bucket_params in _divide_into_buckets(group["params"], bucket_bytes)
        ]
        self.attach(module)

    def members_by_group(self) -> list[tuple[int, Optimizer]]:
        """Return the optimizers of the buckets, each with the index of its group."""
        for bucket in self._buckets:
            bucket.copy_options()
        return [
            (index, bucket.optimizer)
            for index, group in enumerate(self.param_groups)
            for bucket in self._buckets
            if bucket.is_of(group)
        ]

    def _check_groups(self) -> None:
        grouped = {param for group in self.param_groups for param in group["params"]}
        missing = [name for name, param in self.params.items() if param not in grouped]
        if missing:
            raise ValueError(f"{missing[0]} is in none of the groups")
        if len(grouped) > len(set(self.params.values())):
            raise ValueError("The groups have parameters that are not the module's, or are frozen")

    def _make_bucket(self, params: list[Tensor], group: Group, clip_value: float | None) -> Bucket:
        optimizer_class, options = self._class_and_options
        params_or_groups = [{"params": params, VIEW: group[VIEW]}] if VIEW in group else params
        optimizer = optimizer_class(params_or_groups, **options)
        optimizer.state = self.state
        return Bucket(optimizer, group, clip_value)

    def attach(self, module: nn.Module | None = None) -> None:
        """Register with the backward pass, or with each DistributedDataParallel in a module.

        Parameters inside DDP are not marked, because DDP takes the steps of marked parameters
        itself.
        """
        name_by_param = {param: name for name, param in self.params.items()}
        handlers = {
            param: GradientHandler(name_by_param[param], param, bucket, self)
            for bucket in self._buckets
            for param in bucket.params
        }

        def use_gradient(param: Tensor) -> None:
            if param in handlers:  # else another optimizer updates it
                handlers[param].step()

        # The garbage collector does not see what a hook of a parameter refers to. So such a hook
        # refers to the handler weakly, and the parameter keeps its handler alive.
        ddps = [] if module is None else list(ddp_modules(module))
        ddp_params = {param for ddp in ddps for param in ddp.parameters()}
        for ddp in ddps:
            call_when_reduced(ddp, use_gradient)
        for param, handler in handlers.items():
            if param not in ddp_params:
                unmark(param)
                mark(param, handler, *self._class_and_options)
                register_update_hook(param, _weak_step(handler))

    def record(self, name: str, param: Tensor) -> None:
        """Record that a parameter has a gradient.

        Raises:
            RuntimeError: The parameter already had a gradient since the last step.
        """
        if param in self._with_gradient and self._running_pass not in (None, backward_pass()):
            self.check_last_pass()
        if param in self._with_gradient:
            param.grad = None
            raise RuntimeError(
                f"{name} has a second gradient since the last step, and was updated with the "
                "first: call fused_optimizer.step() after each backward pass; to accumulate "
                "gradients, use an optimizer that steps after the backward passes"
            )
        self._with_gradient.add(param)
        if self._running_pass is None:
            self._running_pass = backward_pass()
            after_backward(self._update_incomplete_buckets)

    def check_last_pass(self) -> None:
        """Raise a RuntimeError if the last backward pass failed after it had made gradients."""
        if self._running_pass is None:
            return
        waiting = {p for bucket in self._buckets if bucket.ready_count for p in bucket.params}
        updated = [
            name
            for name, param in self.params.items()
            if param in self._with_gradient and param not in waiting
        ]
        if updated:
            raise RuntimeError(
                f"the last backward pass failed after it had updated {len(updated)} of "
                f"{len(self.params)} parameters, {updated[0]} among them: load a checkpoint, "
                "then call fused_optimizer.zero_grad(); without the checkpoint, the training goes "
                "on from weights of two steps"
            )
        raise RuntimeError(
            "the last backward pass failed before it had updated a parameter: call "
            "fused_optimizer.zero_grad(), which drops its gradients, and repeat the pass"
        )

    def _update_incomplete_buckets(self) -> None:
        """Update the buckets of which this backward pass computed some gradients, but not all."""
        for bucket in self._buckets:
            if bucket.ready_count:
                bucket.update()
        self._running_pass = None

    @with_step_hooks
    def step(self, closure: Any = None) -> Any:
        """End an iteration. After a complete backward pass, nothing is left to update.

        Args:
            closure: Runs the model and its backward pass, and returns the loss.

        Returns:
            The closure's loss.

        Raises:
            RuntimeError: The last backward pass failed.
        """
        self.check_last_pass()
        loss = None
        if closure is not None:
            self._with_gradient.clear()
            with torch.enable_grad():
                loss = closure()
        self._update_incomplete_buckets()
        self._with_gradient.clear()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin an iteration; drop the gradients that an interrupted backward pass has left."""
        self._with_gradient.clear()
        self._running_pass = None
        for bucket in self._buckets:
            bucket.free()

    def init_state(self, sparse_grad_parameter_names: set[str] | None = None) -> None:
        """Create the state that updates would create, without changing parameters."""
        name_by_param = {param: name for name, param in self.params.items()}
        for bucket in self._buckets:
            zero_gradients(
                {name_by_param[p]: p for p in bucket.params}, sparse_grad_parameter_names or set()
            )
            create_state(bucket.optimizer)
            bucket.free()


def _weak_step(handler: GradientHandler) -> Callable[[Tensor], None]:
    """Return a function that calls the handler's step, and does not keep the handler alive."""
    reference = weakref.ref(handler)

    def step(_: Tensor) -> None:
        referenced = reference()
        if referenced is not None:
            referenced.step()

    return step


def _divide_into_buckets(params: list[Tensor], bucket_bytes: int) -> Iterator[list[Tensor]]:
    """Divide parameters into buckets of at most `bucket_bytes`; a larger parameter has its own.

    The last parameters come first, because their gradients are computed first.
    """
    bucket: list[Tensor] = []
    bucket_size = 0
    for param in reversed(params):
        size = param.numel() * param.element_size()  # full size: all ranks must divide alike
        if bucket and bucket_size + size > bucket_bytes:
            yield bucket
            bucket, bucket_size = [], 0
        bucket.append(param)
        bucket_size += size
    if bucket:
        yield bucket


def check_is_class(optimizer_class: object) -> None:
    """Raise a TypeError for a name, or for an optimizer that is made already."""
    if not callable(optimizer_class):
        what = optimizer_class if isinstance(optimizer_class, str) else type(optimizer_class)
        raise TypeError(
            f"an update in the backward pass takes a class and its arguments, such as AdamW, "
            f"lr=1e-3, not {what!r}: optgen.optim.optimizer_class finds the class of a name"
        )


def check_updates_one_by_one(optimizer: Optimizer) -> None:
    """Raise a TypeError for an optimizer that cannot update its parameters one by one."""
    rule = getattr(type(optimizer), "rule", None)
    if isinstance(rule, Rule) and rule.wide:
        raise TypeError(
            f"{type(optimizer).__name__} reduces over several parameters, so it needs all their "
            "gradients at once: take its step after the backward pass"
        )
    if needs_closure(optimizer):
        raise TypeError(
            f"{type(optimizer).__name__}.step needs a closure, which makes all gradients several "
            "times: an update in the backward pass has each of them once"
        )
