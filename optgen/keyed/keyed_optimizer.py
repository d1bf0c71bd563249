"""Define KeyedOptimizer, which saves and loads state by the names of parameters."""

from collections.abc import Collection, Mapping, MutableMapping
from copy import deepcopy
from typing import Any

from torch import Tensor

from optgen.keyed.create_state import create_by_step, zero_gradients
from optgen.keyed.extended_state import ExtendedState
from optgen.keyed.load_state import PendingLoad, group_names, has_method, names_by_param
from optgen.keyed.load_tensors import path_text
from optgen.runtime.light_optimizer import LightOptimizer, with_step_hooks

SAVE_GROUPS = "_save_param_groups"


class KeyedOptimizer(LightOptimizer):
    """An optimizer whose checkpoints identify parameters by name.

    Ranks of a distributed training hold different parameters, so an index in a list does not
    identify a parameter. Groups are made anew at every start, so they are saved only on demand
    (`save_param_groups`). Loading is strict, in place, and all or nothing: a checkpoint must have
    exactly the existing entries. So state must exist (`init_state`) before a checkpoint is loaded.

    A subclass defines `step`, and calls this constructor.

    Args:
        params (Mapping[str, Tensor]): Parameters by name: tensors, DTensors or ShardedTensors.
        state (Mapping[Tensor, dict]): State by parameter.
        param_groups (Collection[Mapping]): Groups of parameters, as torch's optimizers have them.

    The optimizer keeps all three arguments themselves, not copies.

    Raises:
        ValueError: A key of `state` is not one of the parameters.
        TypeError: `params` is not a mapping.
    """

    params: Mapping[str, Tensor]
    _wrapper_params: dict[str, Tensor]  # parameters that wrappers around this optimizer add
    _wrapper_state: dict[Tensor, Any]

    def __init__(
        self,
        params: Mapping[str, Tensor],
        state: Mapping[Any, Any],
        param_groups: Collection[Mapping[str, Any]],
    ) -> None:
        check_names(params)
        self._begin(
            params=params, state=state, param_groups=param_groups, defaults={SAVE_GROUPS: False}
        )
        self._check_state()

    def _check_state(self) -> None:
        known = set(self.params.values())
        unknown_keys = [key for key in self.state if key not in known]
        if unknown_keys:
            raise ValueError(
                f"All state keys must be params. The following keys are not: {unknown_keys}."
            )

    def _begin(self, **attributes: Any) -> None:
        """Set attributes and initialize the optimizer by torch's `__setstate__`.

        torch's constructor would make groups, and accepts tensors only. `__setstate__` does the
        other work of the constructor: it sets up the hooks, and the `step` that runs them.
        """
        super().__setstate__({"_wrapper_params": {}, "_wrapper_state": {}, **attributes})

    @with_step_hooks
    def step(self, closure: Any = None) -> Any:
        """Take a step. Subclasses override this method.

        Raises:
            NotImplementedError: This class has no step.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step: a subclass must have one")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each parameter by name, and the groups if they are to be saved.

        Tensors are not copied, so a checkpoint can be read directly into them. An entry with a
        `state_dict` method is replaced by its result.

        Returns:
            `{"state": {name: {key: value}}}`. After `save_param_groups(True)` also
            `"param_groups"`, where `params` are sorted names, and other values are copies.

        Raises:
            ValueError: A parameter with state, or in a group to be saved, has no name.
        """
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        packed = self._pack()
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            replaced = post_hook(self, packed)
            packed = packed if replaced is None else replaced
        return packed

    def _pack(self) -> dict[str, Any]:
        names = names_by_param(self._all_params())
        state = {}
        for param, values in self._all_state().items():
            if param not in names:
                shape = tuple(param.shape)
                raise ValueError(f"The state has a parameter of shape {shape} that has no name")
            state[names[param]] = _entries(values)
        packed: dict[str, Any] = {"state": state}
        if self.defaults[SAVE_GROUPS]:
            packed["param_groups"] = [_packed_group(g, names) for g in self.param_groups]
        return packed

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a result of `state_dict` into the existing tensors.

        Everything is checked first, so an error leaves the optimizer unchanged. Tensors are written
        in place and keep their dtype and device. Other values are replaced by copies.

        Args:
            state_dict: It has the names, entries, types, shapes and shards of this optimizer's
                state. After `save_param_groups(True)` it also has its groups, in any order.

        Raises:
            KeyError: `state` is missing; or `param_groups` is missing and is to be loaded.
            ValueError: Something differs; the message says what and where.
        """
        state_dict = dict(state_dict)
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = pre_hook(self, state_dict)
            state_dict = state_dict if replaced is None else replaced
        self._load(state_dict)
        self._after_load()
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        names = names_by_param(self._all_params())
        load = PendingLoad()
        if "state" not in state_dict:
            raise KeyError(
                "state: a keyed optimizer loads what its state_dict() returned, but this has "
                f"{path_text(tuple(state_dict))}"
            )
        load.check_state(self._all_state(), names, state_dict["state"])
        if self.defaults[SAVE_GROUPS]:
            if "param_groups" not in state_dict:
                raise KeyError(
                    "param_groups: the state to load was saved without them; save it after "
                    "save_param_groups(True), or load it after save_param_groups(False)"
                )
            load.check_groups(self.param_groups, names, state_dict["param_groups"])
        load.write()

    def _after_load(self) -> None:
        self.post_load_state_dict()

    def post_load_state_dict(self) -> None:
        """Hook for subclasses, called at the end of every load. Does nothing here."""

    def add_param_group(self, param_group: Any) -> None:
        """Raise an error, because the parameters of a group would have no names.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "A keyed optimizer knows its parameters by name: make it with all of them"
        )

    def init_state(self, sparse_grad_parameter_names: set[str] | None = None) -> None:
        """Create the state that a step would create, so that a checkpoint can be loaded into it.

        No parameter, group or existing state changes, and step counts are 0. The gradients of all
        trainable parameters are set to zeros, and remain so.

        This implementation takes a step with these gradients and without weight decay, so that no
        entry depends on the parameters. Then it restores the parameters.

        Args:
            sparse_grad_parameter_names: The parameters that get sparse gradients.
        """
        zero_gradients(self.params, sparse_grad_parameter_names or set())
        self._create_state()

    def _create_state(self) -> None:
        create_by_step(self, lambda: self.step(closure=None))

    def save_param_groups(self, save: bool) -> None:
        """Choose whether groups are part of checkpoints, in saving and in loading."""
        self.defaults[SAVE_GROUPS] = save

    def _add_entry(self, name: str, param: Tensor) -> dict[Tensor, Any]:
        """Add a parameter of a wrapper to checkpoints, under a name.

        The parameter is not one of `params`, and no group holds it.

        Returns:
            The dict for its state.

        Raises:
            ValueError: The name is taken.
        """
        if name in self._all_params():
            raise ValueError(f"Duplicate param key {name}")
        self._wrapper_params[name] = param
        return self._wrapper_state

    def _all_params(self) -> Mapping[str, Tensor]:
        return {**self.params, **self._wrapper_params} if self._wrapper_params else self.params

    def _all_state(self) -> MutableMapping[Tensor, Any]:
        return ExtendedState(self.state, self._wrapper_state) if self._wrapper_state else self.state

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that a copy or a pickle holds.

        Hooks are left out, as in copies of torch's optimizers. So is the `step` that torch's
        schedulers set on an instance, because it would call the original's.
        """
        left_out = ("step", *(name for name in vars(self) if name.endswith("_hooks")))
        return {name: value for name, value in vars(self).items() if name not in left_out}


def check_names(params: object) -> None:
    """Raise a TypeError if parameters are not a mapping from names."""
    if not isinstance(params, Mapping):
        raise TypeError(
            "params must be a mapping from names to parameters, such as "
            f"dict(model.named_parameters()), not a {type(params).__name__}"
        )


def check_keyed(optimizer: object) -> None:
    """Raise a TypeError if an optimizer is not a KeyedOptimizer."""
    if not isinstance(optimizer, KeyedOptimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is no KeyedOptimizer: make one of it, "
            "KeyedOptimizerWrapper(dict(model.named_parameters()), lambda params: …)"
        )


def _entries(values: dict[Any, Any]) -> dict[Any, Any]:
    """Return the entries of a state, with `value.state_dict()` for values that have this method."""
    result = {}
    for key, value in values.items():
        if isinstance(value, dict):
            result[key] = _entries(value)
        else:
            result[key] = value.state_dict() if has_method(value, "state_dict") else value
    return result


def _packed_group(group: Mapping[str, Any], names: Mapping[Tensor, str]) -> dict[str, Any]:
    values = {key: deepcopy(value) for key, value in group.items() if key != "params"}
    return {"params": group_names(group, names), **values}
