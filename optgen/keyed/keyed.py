"""Optimizers that know parameters by name, and wrappers that make or combine them."""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from optgen.keyed.checkpoint import ExtendedState, Refused, check_state_by_parameter, load, pack
from optgen.keyed.create_state import create_by_step, create_state, zero_gradients
from optgen.runtime.joint_step import OptimizerOfMembers
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
        groups = self.param_groups if self.defaults[SAVE_GROUPS] else None
        return pack(self._all_params(), self._all_state(), groups)

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
        groups = self.param_groups if self.defaults[SAVE_GROUPS] else None
        load(state_dict, self._all_params(), self._all_state(), groups)

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


class CombinedOptimizer(OptimizerOfMembers, KeyedOptimizer):
    """Several keyed optimizers as one, such as those of a model's submodules.

    The name of a parameter is its optimizer's key, a dot, and its name in that optimizer. With an
    empty key, the name has no prefix. Checkpoints hold one state under these names. Of the members'
    hooks, only those of `step` run.

    Args:
        optims: Keyed optimizers, or pairs of a key and a keyed optimizer; may be empty.

    Raises:
        ValueError: Two parameters have the same name; or some members save their groups and others
            do not.
        TypeError: A member is not a keyed optimizer.
    """

    _optims: list[tuple[str, KeyedOptimizer]]

    def __init__(self, optims: Sequence[KeyedOptimizer | tuple[str, KeyedOptimizer]]) -> None:
        keyed_members = [each if isinstance(each, tuple) else ("", each) for each in optims]
        for _, optimizer in keyed_members:
            check_keyed(optimizer)
        save_flags = {optimizer.defaults[SAVE_GROUPS] for _, optimizer in keyed_members}
        if len(save_flags) > 1:
            raise Refused(
                "Some optimizers save their param_groups and others do not: call "
                "save_param_groups on the combined one, not on some members"
            )
        self._begin(
            _optims=keyed_members,
            defaults={**_common_defaults(keyed_members), SAVE_GROUPS: save_flags == {True}},
        )
        seen: set[str] = set()
        for name in self._names():
            if name in seen:
                raise ValueError(f"Duplicate param key {name}")
            seen.add(name)

    def _names(self) -> list[str]:
        return [
            self.prepend_opt_key(name, key)
            for key, optimizer in self._optims
            for name in optimizer.params
        ]

    def __repr__(self) -> str:
        return ",".join(f"{key}: {optimizer!r}" for key, optimizer in self._optims)

    @property
    def members(self) -> tuple[KeyedOptimizer, ...]:  # type: ignore[override]
        """The combined optimizers."""
        return tuple(optimizer for _, optimizer in self._optims)

    @property
    def optimizers(self) -> list[tuple[str, KeyedOptimizer]]:
        """The members with their keys, as pairs (key, optimizer); "" is no key."""
        return self._optims

    @staticmethod
    def prepend_opt_key(name: str, opt_key: str) -> str:
        """Return the combined name of a parameter: its optimizer's key, a dot, and its own name."""
        return f"{opt_key}.{name}" if name and opt_key else name or opt_key

    @property
    def params(self) -> dict[str, Tensor]:  # type: ignore[override]
        """The parameters of all members by combined name, in a new dict."""
        return {
            self.prepend_opt_key(name, key): param
            for key, optimizer in self._optims
            for name, param in optimizer.params.items()
        }

    def post_load_state_dict(self) -> None:
        """Call `post_load_state_dict` of all members."""
        for _, optimizer in self._optims:
            optimizer.post_load_state_dict()

    def init_state(self, sparse_grad_parameter_names: set[str] | None = None) -> None:
        """Create the state of all members. `sparse_grad_parameter_names` are combined names."""
        sparse_names = sparse_grad_parameter_names or set()
        for key, optimizer in self._optims:
            names = {n for n in optimizer.params if self.prepend_opt_key(n, key) in sparse_names}
            optimizer.init_state(names)

    def save_param_groups(self, save: bool) -> None:
        """Choose whether groups are part of checkpoints, in saving and in loading."""
        super().save_param_groups(save)
        for _, optimizer in self._optims:
            optimizer.save_param_groups(save)

    def scratch_buffers(self) -> tuple[Tensor, ...]:
        """Return the scratch buffers of all members."""
        members_with_buffers = [
            each for _, each in self._optims if hasattr(each, "scratch_buffers")
        ]
        return tuple(buffer for each in members_with_buffers for buffer in each.scratch_buffers())

    def set_optimizer_step(self, step: int) -> None:
        """Call `set_optimizer_step` of the members that have it."""
        for _, optimizer in self._optims:
            if hasattr(optimizer, "set_optimizer_step"):
                optimizer.set_optimizer_step(step)

    def update_hyper_parameters(self, params_dict: dict[str, Any]) -> None:
        """Call `update_hyper_parameters` of the members that have it."""
        for _, optimizer in self._optims:
            if hasattr(optimizer, "update_hyper_parameters"):
                optimizer.update_hyper_parameters(params_dict)


def _common_defaults(keyed_members: list[tuple[str, KeyedOptimizer]]) -> dict[str, Any]:
    """Return the defaults that all members have, with the first member's values.

    Schedulers read them.
    """
    if not keyed_members:
        return {}
    (_, first), *others = keyed_members
    return {
        key: value
        for key, value in first.defaults.items()
        if all(key in other.defaults for _, other in others)
    }
