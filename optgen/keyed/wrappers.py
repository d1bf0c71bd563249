"""Keyed optimizers around one optimizer: torch's or ours, and any keyed one."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from optgen.keyed.initial import create_state
from optgen.keyed.keyed_optimizer import SAVE, KeyedOptimizer, check_keyed, check_names
from optgen.runtime.light_optimizer import with_step_hooks

OptimizerFactory = Callable[..., Optimizer]


class Around(KeyedOptimizer):
    """The base of what stands around an optimizer and passes on what it is asked for.

    State and groups are those that the optimizer has now: it may replace them, as torch's do when
    they load.
    """

    _optimizer: Optimizer

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the optimizer, by parameter."""
        return self._optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        """The groups of the optimizer."""
        return self._optimizer.param_groups

    @with_step_hooks
    def step(self, closure: Any = None) -> Any:
        """Take a step of the optimizer; return its loss."""
        return self._optimizer.step(closure=closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters, to None or to zeros."""
        self._optimizer.zero_grad(set_to_none=set_to_none)

    def scratch_buffers(self) -> tuple[Tensor, ...]:
        """The optimizer's scratch buffers, if it has any."""
        buffers = getattr(self._optimizer, "scratch_buffers", tuple)
        return tuple(buffers())

    def set_optimizer_step(self, step: int) -> None:
        """Tell the optimizer the number of the step, if it wants to know."""
        if hasattr(self._optimizer, "set_optimizer_step"):
            self._optimizer.set_optimizer_step(step)

    def update_hyper_parameters(self, params_dict: dict[str, Any]) -> None:
        """Hand the optimizer new hyperparameters, if it takes them this way."""
        if hasattr(self._optimizer, "update_hyper_parameters"):
            self._optimizer.update_hyper_parameters(params_dict)


class KeyedOptimizerWrapper(Around):
    """A keyed optimizer of any torch optimizer.

    Args:
        params (Mapping[str, Tensor]): Parameters by name.
        optim_factory: Makes the optimizer of the list of parameters.
        pass_params_dict (bool): Give the factory `params` instead. Default: False.

    Raises:
        ValueError: The optimizer has state of other parameters.
        TypeError: `params` is no mapping.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        optim_factory: OptimizerFactory,
        pass_params_dict: bool = False,
    ) -> None:
        check_names(params)
        optimizer = optim_factory(params if pass_params_dict else list(params.values()))
        self._begin(_optimizer=optimizer, params=params, defaults=_defaults(optimizer))
        self._check_state()

    def _create_state(self) -> None:
        create_state(self._optimizer)


def _defaults(optimizer: Optimizer) -> dict[str, Any]:
    """What schedulers ask for, and the flag."""
    return {**optimizer.defaults, SAVE: False}


class OptimizerWrapper(Around):
    """A keyed optimizer around another one, to do more in some method: the base of such classes.

    A subclass that overrides `step` calls this one, or decorates its own with `with_step_hooks` and
    calls `self._optimizer.step`; either way its hooks run once. One that overrides
    `post_load_state_dict` calls this one, too.

    Args:
        optimizer (KeyedOptimizer): What to stand around.

    Raises:
        TypeError: It is no keyed optimizer.
    """

    _optimizer: KeyedOptimizer
    _passes_on = True

    def __init__(self, optimizer: KeyedOptimizer) -> None:
        check_keyed(optimizer)
        self._begin(_optimizer=optimizer)

    @property
    def params(self) -> Mapping[str, Tensor]:  # type: ignore[override]
        """The parameters of the optimizer by name, and those of wrappers within this one."""
        return self._optimizer._all_params()

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of these parameters."""
        return self._optimizer._all_state()

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the optimizer, among them whether groups are saved."""
        return self._optimizer.defaults

    def __repr__(self) -> str:
        return repr(self._optimizer)

    def _pack(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state_dict)

    def _loaded(self) -> None:
        self._passes_on = False  # what stands within has been told
        try:
            self.post_load_state_dict()
        finally:
            del self._passes_on

    def post_load_state_dict(self) -> None:
        """Pass on that state was loaded; an override calls this one too."""
        if self._passes_on:
            self._optimizer.post_load_state_dict()

    def init_state(self, sparse_grad_parameter_names: set[str] | None = None) -> None:
        """Have the optimizer create its state; a subclass with state of its own creates that."""
        self._optimizer.init_state(sparse_grad_parameter_names)

    def save_param_groups(self, save: bool) -> None:
        """Choose whether groups are part of checkpoints, in saving and in loading."""
        self._optimizer.save_param_groups(save)

    def _add_entry(self, name: str, param: Tensor) -> dict[Tensor, Any]:
        return self._optimizer._add_entry(name, param)
