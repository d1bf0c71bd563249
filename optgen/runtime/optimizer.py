"""The base of every generated optimizer: a torch.optim.Optimizer whose rule is data."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from optgen.runtime import checkpoint, dispatch
from optgen.runtime.collect import Survey
from optgen.runtime.private import (
    check_graph_capture,
    compiling,
    observed,
    observed_by_torch,
    outside_dynamo,
    set_grad_enabled,
    undecorated,
    unobserved,
)
from optgen.runtime.rule import Rule
from optgen.runtime.state import ensure

if TYPE_CHECKING:
    from optgen.runtime.fused_cpu.repeat import Repeat

F = TypeVar("F", bound=Callable[..., Any])


def hooked(step: F) -> F:
    """Run hooks and the profiler's record around a step as torch does, if there are any.

    `hooked` on the result keeps torch from wrapping it again. A subclass with a step of its own is
    wrapped by torch, and by the time it comes here its hooks have run.
    """
    watched = observed(step)
    compiled = outside_dynamo(watched)

    @functools.wraps(step)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return compiled(*args, **kwargs)
        optimizer = args[0]
        if unobserved(optimizer) or observed_by_torch(optimizer):
            return step(*args, **kwargs)
        return watched(*args, **kwargs)

    wrapper.hooked = True  # type: ignore[attr-defined]
    return cast(F, wrapper)


class GeneratedOptimizer(Optimizer):
    """A torch optimizer that takes its steps through the lowerings generated from one rule."""

    rule: ClassVar[Rule]
    lowerings: ClassVar[str]  # the package that holds them

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._begin()
        super().__init__(params, defaults)
        if defaults.get("fused"):
            if defaults.get("differentiable"):
                raise RuntimeError("`fused` does not support `differentiable`")
            # Only where asked for: with it GradScaler leaves unscaling to the step, and some
            # frameworks refuse to clip gradients.
            self._step_supports_amp_scaling = True
            if defaults.get("foreach"):
                raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
        if any(state.eager for state in self.rule.states):
            self._create(lambda param: True)

    def _begin(self) -> None:
        self._survey = Survey()
        self._repeat: Repeat | None = None  # of a step that was fused C++ and nothing else

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @hooked
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform a single optimization step.

        Args:
            closure: Reevaluates the model and returns the loss.
        """
        check_graph_capture(self)
        enabled = torch.is_grad_enabled()
        set_grad_enabled(self.defaults.get("differentiable", False))
        try:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            dispatch.step(self)
        finally:
            set_grad_enabled(enabled)
        return loss

    def init_state(self) -> None:
        """Create the state that the first step would create, without taking a step.

        But what the rule treats unlike at first, as SGD its momentum: the first step creates it.
        """
        self._create(lambda param: param.requires_grad)

    def _create(self, chosen: Callable[[Tensor], bool]) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                params = filter(chosen, group["params"])
                ensure(self.rule, self.state, group, params, ahead=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        previous = self.__dict__.get("param_groups", [])
        super().__setstate__(state)
        self._begin()
        checkpoint.backfill(self, previous)
        checkpoint.scalars_to_tensors(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state as torch's class of the same name would."""
        hooks = self._optimizer_state_dict_post_hooks
        self._optimizer_state_dict_post_hooks = OrderedDict()
        try:
            packed = undecorated(Optimizer.state_dict)(self)
        finally:
            self._optimizer_state_dict_post_hooks = hooks
        packed = checkpoint.portable(self, packed)
        for hook in hooks.values():
            replaced = hook(self, packed)
            packed = packed if replaced is None else replaced
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that this class, or torch's of the same name, returned."""
        undecorated(Optimizer.load_state_dict)(self, state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters, to None or to zeros."""
        undecorated(Optimizer.zero_grad)(self, set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with its own hyperparameters where it gives them."""
        undecorated(Optimizer.add_param_group)(self, param_group)
