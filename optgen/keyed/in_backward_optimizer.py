"""Update the parameters of a module in the backward pass, bucket by bucket."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from optgen.keyed.backward_hooks import mark, register_update_hook, unmark
from optgen.keyed.create_state import create_state, zero_gradients
from optgen.keyed.ddp import call_when_reduced, ddp_modules
from optgen.keyed.fused import FusedOptimizer
from optgen.keyed.gradient_norms import Gradients
from optgen.keyed.one_gradient_per_step import OneGradientPerStep
from optgen.keyed.rule_checks import check_not_wide, check_state_by_parameter
from optgen.keyed.torch_private import after_backward
from optgen.runtime.light_optimizer import with_step_hooks
from optgen.runtime.tensors.group_view import VIEW

Group = dict[str, Any]


class Bucket:
    """Parameters that are updated together, when all their gradients are ready."""

    def __init__(self, optimizer: Optimizer, group: Group, clip_value: float | None) -> None:
        self.optimizer = optimizer
        self.params: list[Tensor] = optimizer.param_groups[0]["params"]
        self.waiting = 0  # gradients that are ready but not used yet
        self._public_group = group  # which schedulers change
        self._clip_value = clip_value

    def arrive(self) -> None:
        """Count a gradient; update if it is the last one of the bucket."""
        self.waiting += 1
        if self.waiting == len(self.params):
            self.update()

    @torch.no_grad()
    def update(self) -> None:
        """Take a step with the gradients that are ready, and free them."""
        private_group = self.optimizer.param_groups[0]
        private_group.update(
            {key: value for key, value in self._public_group.items() if key != "params"}
        )
        if self._clip_value is not None:
            Gradients(self.params).clamp(self._clip_value)
        self.optimizer.step()
        self.free()

    def free(self) -> None:
        """Drop the gradients."""
        self.waiting = 0
        for param in self.params:
            param.grad = None


class GradientHandler:
    """Handler that the backward pass calls when the gradient of one parameter is ready."""

    def __init__(self, name: str, param: Tensor, bucket: Bucket, owner: "InBackwardOptimizer"):
        self._name, self._param, self._bucket, self._owner = name, param, bucket, owner

    def step(self) -> None:
        """Use the gradient, now or when the gradients of its bucket are complete."""
        self._owner.record(self._name, self._param)
        self._bucket.arrive()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a copied parameter gets a new handler


class InBackwardOptimizer(FusedOptimizer):
    """Optimizer that updates parameters in the backward pass, and holds their state and groups.

    The values of `param_groups` are read whenever gradients are used.

    Args:
        params (Mapping[str, Tensor]): Parameters by name.
        optimizer_class: Makes an optimizer from a list of parameters.
        bucket_bytes (int): The most bytes of gradients that may wait for one update. Sharded
            parameters count with their full size.
        clip_value (float or None): The largest magnitude of an element of a gradient.
        groups (iterable or None): Groups of the parameters; None for one group.
        hyper (Mapping): Further arguments of the class.
        module (Module or None): The module, which may contain DistributedDataParallel.

    Raises:
        ValueError: The groups have other parameters, or lack some.
        TypeError: The optimizer keeps states in its groups or in 8 bits, or its rule reduces over
            several parameters.
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
        options = dict(hyper or {})
        grouped = list(params.values()) if groups is None else [dict(group) for group in groups]
        public = optimizer_class(grouped, **options)  # has the state and the groups, never steps
        check_state_by_parameter(public)
        check_not_wide(public)
        super().__init__(params, public.state, public.param_groups)
        self.defaults.update(public.defaults)
        self._class_and_options = (optimizer_class, options)
        self._gradients = OneGradientPerStep()
        self._finish_queued = False  # whether the current backward pass will call _finish
        self._check_groups()
        self._buckets = [
            self._make_bucket(bucket_params, group, clip_value)
            for group in self.param_groups
            for bucket_params in _divide(group["params"], bucket_bytes)
        ]
        self.attach(module)

    def _check_groups(self) -> None:
        grouped = {param for group in self.param_groups for param in group["params"]}
        missing = [name for name, param in self.params.items() if param not in grouped]
        if missing:
            raise ValueError(f"{missing[0]} is in none of the groups")
        if len(grouped) > len(set(self.params.values())):
            raise ValueError("The groups have parameters that are not the module's, or are frozen")

    def _make_bucket(self, params: list[Tensor], group: Group, clip_value: float | None) -> Bucket:
        optimizer_class, options = self._class_and_options
        viewed = [{"params": params, VIEW: group[VIEW]}] if VIEW in group else params
        optimizer = optimizer_class(viewed, **options)
        optimizer.state = self.state
        return Bucket(optimizer, group, clip_value)

    def attach(self, module: nn.Module | None = None) -> None:
        """Register with the backward pass, or with the engines (DDP) in a module.

        Parameters of an engine are not marked, because an engine takes the steps of marked
        parameters itself.
        """
        names = {param: name for name, param in self.params.items()}
        handlers = {
            param: GradientHandler(names[param], param, bucket, self)
            for bucket in self._buckets
            for param in bucket.params
        }

        def arrive(param: Tensor) -> None:
            if param in handlers:  # else another optimizer updates it
                handlers[param].step()

        engines = [] if module is None else list(ddp_modules(module))
        reduced = {param for engine in engines for param in engine.parameters()}
        for engine in engines:
            call_when_reduced(engine, arrive)
        for param, handler in handlers.items():
            if param not in reduced:
                unmark(param)
                mark(param, handler, *self._class_and_options)
                register_update_hook(param, arrive)

    def record(self, name: str, param: Tensor) -> None:
        """Record that a parameter has a gradient.

        Raises:
            RuntimeError: The parameter already had a gradient since the last step.
        """
        self._gradients.record(name, param)
        if not self._finish_queued:
            self._finish_queued = True
            after_backward(self._finish)

    def _finish(self) -> None:
        """Update the buckets that lack gradients, because this pass did not compute all of them."""
        self._finish_queued = False
        for bucket in self._buckets:
            if bucket.waiting:
                bucket.update()

    @with_step_hooks
    def step(self, closure: Any = None) -> Any:
        """End an iteration; nothing is left to update.

        Args:
            closure: Runs the model and its backward pass, and returns the loss.

        Returns:
            The closure's loss.
        """
        loss = None
        if closure is not None:
            self._gradients.forget()
            with torch.enable_grad():
                loss = closure()
        self._finish()
        self._gradients.forget()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin an iteration; drop the gradients that an interrupted backward pass has left."""
        self._gradients.forget()
        self._finish_queued = False
        for bucket in self._buckets:
            bucket.free()

    def init_state(self, sparse_grad_parameter_names: set[str] | None = None) -> None:
        """Create the state that updates would create, without changing parameters."""
        names = {param: name for name, param in self.params.items()}
        for bucket in self._buckets:
            zero_gradients(
                {names[p]: p for p in bucket.params}, sparse_grad_parameter_names or set()
            )
            create_state(bucket.optimizer)
            bucket.free()


def _divide(params: list[Tensor], bucket_bytes: int) -> Iterator[list[Tensor]]:
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
