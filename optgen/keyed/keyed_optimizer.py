"""KeyedOptimizer: state is saved and loaded by the names of parameters."""

from collections.abc import Collection, Mapping, MutableMapping
from copy import deepcopy
from typing import Any

from torch import Tensor

from optgen.keyed.extended import Extended
from optgen.keyed.initial import by_step, zero_gradients
from optgen.keyed.leaves import said
from optgen.keyed.load import Load, group_names, named, stateful
from optgen.runtime.light_optimizer import LightOptimizer, with_step_hooks

SAVE = "_save_param_groups"


class KeyedOptimizer(LightOptimizer):
    """An optimizer whose checkpoints know parameters by name, and load in place or not at all.

    Ranks of a distributed training hold different parameters, so their place in a list says
    nothing; and groups are made anew at every start, so they are saved only on demand
    (`save_param_groups`). Loading is strict: what is loaded must have the entries that are there,
    so state must exist (`init_state`) before a checkpoint can be loaded.

    A subclass has a `step`, and calls this constructor.

    Args:
        params (Mapping[str, Tensor]): Parameters by name: tensors, DTensors or ShardedTensors.
        state (Mapping[Tensor, dict]): State by parameter.
        param_groups (Collection[Mapping]): Groups of parameters, as torch's optimizers have them.

    All three are kept, not copied.

    Raises:
        ValueError: A key of `state` is none of the parameters.
        TypeError: `params` is no mapping.
    """

    params: Mapping[str, Tensor]
    _own_params: dict[str, Tensor]  # of wrappers around this one, which keep state beside its own
    _own_state: dict[Tensor, Any]

    def __init__(
        self,
        params: Mapping[str, Tensor],
        state: Mapping[Any, Any],
        param_groups: Collection[Mapping[str, Any]],
    ) -> None:
        check_names(params)
        self._begin(params=params, state=state, param_groups=param_groups, defaults={SAVE: False})
        self._check_state()

    def _check_state(self) -> None:
        known = set(self.params.values())
        foreign = [key for key in self.state if key not in known]
        if foreign:
            raise ValueError(
                f"All state keys must be params. The following keys are not: {foreign}."
            )

    def _begin(self, **attributes: Any) -> None:
        """Set attributes and make an optimizer of them, as torch does after a load.

        torch's constructor would make groups, of tensors alone; what else it sets, all hooks
        and the step that runs them, it also sets here.
        """
        super().__setstate__({"_own_params": {}, "_own_state": {}, **attributes})

    @with_step_hooks
    def step(self, closure: Any = None) -> Any:
        """Take a step; a subclass does.

        Raises:
            NotImplementedError: There is no step in this class.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step: a subclass must have one")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each parameter by its name, and the groups if they are to be saved.

        Tensors are those of the optimizer, so that a checkpoint can be read straight into them. An
        entry with a `state_dict` of its own is replaced by its result.

        Returns:
            `{"state": {name: {key: value}}}`, and with `save_param_groups(True)` `"param_groups"`:
            their `params` are sorted names, other values copies.

        Raises:
            ValueError: A parameter with state, or of a group to be saved, has no name.
        """
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        packed = self._pack()
        for after in self._optimizer_state_dict_post_hooks.values():
            replaced = after(self, packed)
            packed = packed if replaced is None else replaced
        return packed

    def _pack(self) -> dict[str, Any]:
        names = named(self._all_params())
        state = {}
        for param, values in self._all_state().items():
            if param not in names:
                shape = tuple(param.shape)
                raise ValueError(f"The state has a parameter of shape {shape} that has no name")
            state[names[param]] = _content(values)
        packed: dict[str, Any] = {"state": state}
        if self.defaults[SAVE]:
            packed["param_groups"] = [_packed_group(g, names) for g in self.param_groups]
        return packed

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned, into the tensors that are there.

        Everything is checked first: after an error the optimizer is as it was. Tensors are written
        in place, converted to their dtype and device; other values are replaced by copies.

        Args:
            state_dict: With the names, entries, kinds, shapes and shards of this optimizer's state;
                with its groups, in any order, after `save_param_groups(True)`.

        Raises:
            KeyError: There is no state, or there are no groups but they are to be loaded.
            ValueError: Anything differs; the message says what and where.
        """
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = before(self, state_dict)
            state_dict = state_dict if replaced is None else replaced
        self._load(state_dict)
        self._loaded()
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        names = named(self._all_params())
        load = Load()
        if "state" not in state_dict:
            raise KeyError(
                "state: a keyed optimizer loads what its state_dict() returned, but this has "
                f"{said(tuple(state_dict))}"
            )
        load.state(self._all_state(), names, state_dict["state"])
        if self.defaults[SAVE]:
            if "param_groups" not in state_dict:
                raise KeyError(
                    "param_groups: the state to load was saved without them; save it after "
                    "save_param_groups(True), or load it after save_param_groups(False)"
                )
            load.groups(self.param_groups, names, state_dict["param_groups"])
        load.write()

    def _loaded(self) -> None:
        self.post_load_state_dict()

    def post_load_state_dict(self) -> None:
        """Do what follows from a load; called at the end of every one. Here nothing."""

    def add_param_group(self, param_group: Any) -> None:
        """Refuse: a parameter needs a name.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "A keyed optimizer knows its parameters by name: make it with all of them"
        )

    def init_state(self, sparse_grad_parameter_names: set[str] | None = None) -> None:
        """Create the state that a step would create, for a checkpoint to be loaded into.

        No weight, group or existing state changes, and steps are counted from 0. Gradients of all
        named parameters that require them are set to zeros, and stay.

        Here that is a step with these gradients, from copies of the weights that are put back, and
        without weight decay, so that no entry depends on the weights.

        Args:
            sparse_grad_parameter_names: The parameters that get sparse gradients.
        """
        zero_gradients(self.params, sparse_grad_parameter_names or set())
        self._create_state()

    def _create_state(self) -> None:
        by_step(self, lambda: self.step(closure=None))

    def save_param_groups(self, save: bool) -> None:
        """Choose whether groups are part of checkpoints, in saving and in loading."""
        self.defaults[SAVE] = save

    def _add_entry(self, name: str, param: Tensor) -> dict[Tensor, Any]:
        """Give a parameter that a wrapper adds a name in checkpoints, and its state a place.

        It is kept apart: what is wrapped, and whose parameters these are, need not know it.

        Returns:
            Where its state is to be kept.

        Raises:
            ValueError: The name is taken.
        """
        if name in self._all_params():
            raise ValueError(f"Duplicate param key {name}")
        self._own_params[name] = param
        return self._own_state

    def _all_params(self) -> Mapping[str, Tensor]:
        return {**self.params, **self._own_params} if self._own_params else self.params

    def _all_state(self) -> MutableMapping[Tensor, Any]:
        return Extended(self.state, self._own_state) if self._own_state else self.state

    def __getstate__(self) -> dict[str, Any]:
        """Everything but hooks, which a copy of an optimizer of torch's has not either.

        And but the `step` that torch's schedulers put in an instance: it takes the original's.
        """
        left = ("step", *(name for name in vars(self) if name.endswith("_hooks")))
        return {name: value for name, value in vars(self).items() if name not in left}


def check_names(params: object) -> None:
    """Raise a TypeError if parameters come without names."""
    if not isinstance(params, Mapping):
        raise TypeError(
            "params must be a mapping from names to parameters, such as "
            f"dict(model.named_parameters()), not a {type(params).__name__}"
        )


def check_keyed(optimizer: object) -> None:
    """Raise a TypeError if an optimizer does not know the names of its parameters."""
    if not isinstance(optimizer, KeyedOptimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is no KeyedOptimizer: make one of it, "
            "KeyedOptimizerWrapper(dict(model.named_parameters()), lambda params: …)"
        )


def _content(values: dict[Any, Any]) -> dict[Any, Any]:
    """The entries of a state, those with a state of their own replaced by it."""
    result = {}
    for key, value in values.items():
        if isinstance(value, dict):
            result[key] = _content(value)
        else:
            result[key] = value.state_dict() if stateful(value, "state_dict") else value
    return result


def _packed_group(group: Mapping[str, Any], names: Mapping[Tensor, str]) -> dict[str, Any]:
    values = {key: deepcopy(value) for key, value in group.items() if key != "params"}
    return {"params": group_names(group, names), **values}
