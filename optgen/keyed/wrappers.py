"""Wrap one optimizer, torch's or ours, as a keyed optimizer."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from optgen.keyed.create_state import create_state
from optgen.keyed.keyed_optimizer import (
    SAVE_GROUPS,
    KeyedOptimizer,
    check_keyed,
    check_names,
)
from optgen.keyed.rule_checks import check_state_by_parameter
from optgen.runtime.light_optimizer import with_step_hooks

OptimizerFactory = Callable[..., Optimizer]


class WrapperBase(KeyedOptimizer):
    """Base of wrappers: it delegates to the wrapped optimizer.

    State and groups are always read from the wrapped optimizer, because it may replace them, as
    torch's optimizers do when they load.
    """

    _optimizer: Optimizer

    @property
    def members(self) -> tuple[Optimizer, ...]:  # type: ignore[override]
        """The wrapped optimizer, in a tuple of one."""
        return (self._optimizer,)

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the wrapped optimizer, by parameter."""
        return self._optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        """The groups of the wrapped optimizer."""
        return self._optimizer.param_groups

    @with_step_hooks
    def step(self, closure: Any = None) -> Any:
        """Take a step with the wrapped optimizer; return its loss."""
        return self._optimizer.step(closure=closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters, to None or to zeros."""
        self._optimizer.zero_grad(set_to_none=set_to_none)

    def scratch_buffers(self) -> tuple[Tensor, ...]:
        """Return the wrapped optimizer's scratch buffers, if it has any."""
        buffers = getattr(self._optimizer, "scratch_buffers", tuple)
        return tuple(buffers())

    def set_optimizer_step(self, step: int) -> None:
        """Call `set_optimizer_step` of the wrapped optimizer, if it has the method."""
        if hasattr(self._optimizer, "set_optimizer_step"):
            self._optimizer.set_optimizer_step(step)

    def update_hyper_parameters(self, params_dict: dict[str, Any]) -> None:
        """Call `update_hyper_parameters` of the wrapped optimizer, if it has the method."""
        if hasattr(self._optimizer, "update_hyper_parameters"):
            self._optimizer.update_hyper_parameters(params_dict)


class KeyedOptimizerWrapper(WrapperBase):
    """A keyed optimizer around any torch optimizer.

    Args:
        params (Mapping[str, Tensor]): Parameters by name.
        optim_factory: Makes the optimizer from the list of parameters.
        pass_params_dict (bool): Pass `params` to the factory instead of the list. Default: False.

    Raises:
        ValueError: The optimizer has state for other parameters.
        TypeError: `params` is not a mapping; or the optimizer keeps states in its groups or in 8
            bits.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        optim_factory: OptimizerFactory,
        pass_params_dict: bool = False,
    ) -> None:
        check_names(params)
        optimizer = optim_factory(params if pass_params_dict else list(params.values()))
        check_state_by_parameter(optimizer)
        self._begin(_optimizer=optimizer, params=params, defaults=_defaults(optimizer))
        self._check_state()

    def _create_state(self) -> None:
        create_state(self._optimizer)


def _defaults(optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's defaults, which schedulers read, and the flag SAVE_GROUPS."""
    return {**optimizer.defaults, SAVE_GROUPS: False}


class OptimizerWrapper(WrapperBase):
    """Base of keyed optimizers that wrap another one and extend some of its methods.

    A subclass that overrides `step` calls the inherited method, or decorates its own method with
    `with_step_hooks` and calls `self._optimizer.step`. Either way its hooks run once. A subclass
    that overrides `post_load_state_dict` also calls the inherited method.

    Args:
        optimizer (KeyedOptimizer): The optimizer to wrap.

    Raises:
        TypeError: `optimizer` is not a keyed optimizer.
    """

    _optimizer: KeyedOptimizer
    _calls_wrapped_hook = True  # whether post_load_state_dict calls the wrapped optimizer's too

    def __init__(self, optimizer: KeyedOptimizer) -> None:
        check_keyed(optimizer)
        self._begin(_optimizer=optimizer)

    @property
    def params(self) -> Mapping[str, Tensor]:  # type: ignore[override]
        """The parameters of the wrapped optimizer, and those that wrappers add to it, by name."""
        return self._optimizer._all_params()

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the wrapped optimizer and its wrappers, by parameter."""
        return self._optimizer._all_state()

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the wrapped optimizer, and a flag that tells whether groups are saved."""
        return self._optimizer.defaults

    def __repr__(self) -> str:
        return repr(self._optimizer)

    def _pack(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state_dict)

    def _after_load(self) -> None:
        self._calls_wrapped_hook = False  # the wrapped optimizer called it when it loaded
        try:
            self.post_load_state_dict()
        finally:
            del self._calls_wrapped_hook

    def post_load_state_dict(self) -> None:
        """Call `post_load_state_dict` of the wrapped optimizer. An override must call this."""
        if self._calls_wrapped_hook:
            self._optimizer.post_load_state_dict()

    def init_state(self, sparse_grad_parameter_names: set[str] | None = None) -> None:
        """Create the wrapped optimizer's state. A subclass creates its own state, too."""
        self._optimizer.init_state(sparse_grad_parameter_names)

    def save_param_groups(self, save: bool) -> None:
        """Choose whether groups are part of checkpoints, in saving and in loading."""
        self._optimizer.save_param_groups(save)

    def _add_entry(self, name: str, param: Tensor) -> dict[Tensor, Any]:
        return self._optimizer._add_entry(name, param)
