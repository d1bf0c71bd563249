"""Save and load state and groups by name: in place, after checking everything."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.programs import ModeOptimizer
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.dtensor import is_dtensor

Groups = Collection[Mapping[str, Any]]


def pack(
    params: Mapping[str, Tensor], state: Mapping[Tensor, Any], groups: Groups | None
) -> dict[str, Any]:
    """Return the state of each parameter by name, and the groups unless they are None."""
    names = names_by_param(params)
    packed_state = {}
    for param, values in state.items():
        if param not in names:
            shape = tuple(param.shape)
            raise ValueError(f"The state has a parameter of shape {shape} that has no name")
        packed_state[names[param]] = _entries(values)
    packed: dict[str, Any] = {"state": packed_state}
    if groups is not None:
        packed["param_groups"] = [_packed_group(group, names) for group in groups]
    return packed


def load(
    state_dict: Mapping[str, Any],
    params: Mapping[str, Tensor],
    state: Mapping[Tensor, Any],
    groups: Groups | None,
) -> None:
    """Load a result of `pack` into a state, and into groups unless they are None."""
    names, pending = names_by_param(params), PendingLoad()
    if "state" not in state_dict:
        raise KeyError(
            "state: a keyed optimizer loads what its state_dict() returned, but this has "
            f"{path_text(tuple(state_dict))}"
        )
    pending.check_state(state, names, state_dict["state"])
    if groups is not None:
        if "param_groups" not in state_dict:
            raise KeyError(
                "param_groups: the state to load was saved without them; save it after "
                "save_param_groups(True), or load it after save_param_groups(False)"
            )
        pending.check_groups(groups, names, state_dict["param_groups"])
    pending.write()


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


def has_method(value: object, method: str) -> bool:
    """Tell whether an entry of a state has a method, state_dict or load_state_dict."""
    return callable(getattr(value, method, None))


def names_by_param(params: Mapping[str, Tensor]) -> dict[Tensor, str]:
    """Return the name of each parameter; if it has several, the last."""
    return {param: name for name, param in params.items()}


def group_names(group: Mapping[str, Any], names: Mapping[Tensor, str]) -> list[str]:
    """Return the sorted names of a group's parameters.

    Raises:
        ValueError: A parameter has no name.
    """
    for param in group["params"]:
        if param not in names:
            shape = tuple(param.shape)
            raise ValueError(f"A param group has a parameter of shape {shape} that has no name")
    return sorted(names[param] for param in group["params"])


class PendingLoad:
    """The writes of one load: collected while everything is checked, and done at the end."""

    def __init__(self) -> None:
        self._tensors: list[TensorCopy] = []
        # Other values: the dict to write to, the key, and the new value.
        self._values: list[tuple[dict[Any, Any], Any, Any]] = []
        # Objects with a `load_state_dict` method, and the state to load into each.
        self._objects: list[tuple[Any, Any]] = []

    def check_state(
        self,
        current: Mapping[Tensor, Any],
        names: Mapping[Tensor, str],
        new: Mapping[str, Mapping[Any, Any]],
    ) -> None:
        """Check the states of all parameters, and collect the writes.

        Raises:
            ValueError: The states differ in parameters, entries, types, shapes or shards.
        """
        if len(current) != len(new):
            raise ValueError(f"Different parameter count: {len(current)} vs {len(new)}")
        for param, name in names.items():
            if param not in current:
                continue
            if name not in new:
                raise ValueError(f"Parameter {name} not found")
            if len(current[param]) != len(new[name]):
                sizes = f"{len(current[param])} vs {len(new[name])}"
                raise ValueError(f"Different state size: {sizes}")
            self._check_entries(current[param], new[name], (name,))

    def _check_entries(self, current: dict[Any, Any], new: Any, path: Path) -> None:
        if not isinstance(new, Mapping):
            raise Refused(
                f"Different kind: dict vs {type_name(new)} for the path of {path_text(path)}"
            )
        if current.keys() != new.keys():
            raise ValueError(
                f"Different entries: {path_text(tuple(current))} vs {path_text(tuple(new))} "
                f"for the path of {path_text(path)}"
            )
        for key, value in current.items():
            self._check_entry(current, key, value, new[key], (*path, key))

    def _check_entry(
        self, holder: dict[Any, Any], key: Any, value: Any, new: Any, path: Path
    ) -> None:
        if isinstance(value, dict):
            self._check_entries(value, new, path)
        elif has_method(value, "load_state_dict"):
            self._objects.append((value, new))
        elif isinstance(value, Tensor):
            with torch.no_grad():
                self._tensors += tensor_copies(value, new, path)
        else:
            self._values.append((holder, key, deepcopy(new)))

    def check_groups(self, current: Groups, names: Mapping[Tensor, str], new: Groups) -> None:
        """Check all groups, and collect the writes.

        A group is identified by the names of its parameters.

        Raises:
            ValueError: The groups differ in parameters or keys.
        """
        if len(current) != len(new):
            raise ValueError(f"Different param_groups count: {len(current)} vs {len(new)}")
        new_by_name = {"/".join(sorted(group["params"])): group for group in new}
        for group in current:
            name = "/".join(group_names(group, names))
            if name not in new_by_name:
                raise ValueError(f"Group {name} not found")
            self._check_group(group, new_by_name[name], name)

    def _check_group(self, group: Any, new: Mapping[str, Any], name: str) -> None:
        if len(group) != len(new):
            raise ValueError(f"Different param_group size: {len(group)} vs {len(new)}")
        for key in group:
            if key not in new:
                raise ValueError(f"Group key {key} not found for group {name}")
            if key != "params":
                self._values.append((group, key, deepcopy(new[key])))

    def write(self) -> None:
        """Write everything. Objects load first: if one fails, earlier ones are restored."""
        self._load_objects()
        with torch.no_grad():
            for copy in self._tensors:
                copy.write()
        for holder, key, value in self._values:
            holder[key] = value

    def _load_objects(self) -> None:
        old_states: list[tuple[Any, Any]] = []
        try:
            for value, new in self._objects:
                if has_method(value, "state_dict"):
                    old_states.append((value, deepcopy(value.state_dict())))
                value.load_state_dict(new)
        except BaseException:
            for value, old in reversed(old_states):
                value.load_state_dict(old)
            raise


Path = tuple[Any, ...]  # the name of a parameter, then keys into its state


@dataclass(frozen=True)
class TensorCopy:
    """A tensor to write, and the tensor to copy into it."""

    target: Tensor
    source: Tensor

    def write(self) -> None:
        """Copy. A shard gets the source's shape, and a sparse tensor its number of sparse axes."""
        if self.target.is_sparse:
            self._match_sparse_axes()
        elif self.target.shape != self.source.shape:
            self.target.resize_(self.source.shape)
        self.target.copy_(self.source)  # not into detach(): a sparse alias has its own memory

    def _match_sparse_axes(self) -> None:
        """Make as many axes sparse as the source has, because copying does not."""
        axes = self.source.sparse_dim()
        if self.target.sparse_dim() != axes:
            self.target.sparse_resize_and_clear_(self.source.shape, axes, self.source.dense_dim())


def path_text(path: Path) -> str:
    """Return the path of an entry for error messages: a list in JSON."""
    return json.dumps(path, default=str)


def type_name(value: object) -> str:
    """Return "ShardedTensor", "DTensor" or "Tensor"; for other values, the name of the type."""
    if is_sharded_tensor(value):
        return "ShardedTensor"
    if is_dtensor(type(value)):
        return "DTensor"
    return "Tensor" if isinstance(value, Tensor) else type(value).__name__


def is_sharded_tensor(value: object) -> bool:
    """Tell whether a value is a ShardedTensor, which is older than DTensor; import nothing."""
    module = sys.modules.get("torch.distributed._shard.sharded_tensor")
    cls: Any = getattr(module, "ShardedTensor", None)
    return cls is not None and isinstance(value, cls)


def tensor_copies(current: Any, new: Any, path: Path) -> list[TensorCopy]:
    """Pair the plain tensors of this rank that two tensors consist of, without copying yet.

    Neither this function nor the copying uses collectives, so an error on one rank does not make
    other ranks wait.

    Raises:
        ValueError: The tensors differ in type, number of shards, shape, layout or placement; or
            only the new one is complex.
    """
    if type_name(current) != type_name(new):
        raise Refused(
            f"Different kind: {type_name(current)} vs {type_name(new)} "
            f"for the path of {path_text(path)}"
        )
    if is_sharded_tensor(current):
        current_shards = [shard.tensor for shard in current.local_shards()]
        new_shards = [shard.tensor for shard in new.local_shards()]
        return _shard_copies(current_shards, new_shards, path, fixed_shape=False)
    if is_dtensor(type(current)):
        return _dtensor_copies(current, new, path)
    return [_pair(current, new, path)]


def _dtensor_copies(current: Any, new: Any, path: Path) -> list[TensorCopy]:
    current_local, new_local = current.to_local(), new.to_local()
    has_shards = hasattr(current_local, "local_shards")  # of torchrec's LocalShardsWrapper
    if has_shards != hasattr(new_local, "local_shards"):
        kinds = f"{type(current_local).__name__} vs {type(new_local).__name__}"
        raise Refused(f"Different kind: DTensor of {kinds} for the path of {path_text(path)}")
    if has_shards:
        return _shard_copies(current_local.local_shards(), new_local.local_shards(), path)
    _require_equal("shape", current.shape, new.shape, path)
    current_mesh, new_mesh = current.device_mesh, new.device_mesh
    if current.placements != new.placements or not torch.equal(current_mesh.mesh, new_mesh.mesh):
        raise ValueError(
            f"Different placements: {current.placements} on {current_mesh} vs {new.placements} on "
            f"{new_mesh} for the path of {path_text(path)}; redistribute what is to be loaded, "
            "on all ranks"
        )
    return [_pair(current_local, new_local, path)]


def _shard_copies(
    current: Sequence[Tensor], new: Sequence[Tensor], path: Path, fixed_shape: bool = True
) -> list[TensorCopy]:
    if len(current) != len(new):
        counts = f"{len(current)} vs {len(new)}"
        raise ValueError(f"Different number of shards {counts} for the path of {path_text(path)}")
    pairs = zip(current, new, strict=True)
    return [_pair(old_shard, new_shard, path, fixed_shape) for old_shard, new_shard in pairs]


def _pair(current: Tensor, new: Tensor, path: Path, fixed_shape: bool = True) -> TensorCopy:
    if fixed_shape:
        _require_equal("shape", current.shape, new.shape, path)
    if new.is_sparse and not current.is_sparse:  # torch's SGD has sparse momentum, ours has not
        new = new.to_dense()
    _require_equal("layout", current.layout, new.layout, path)
    if new.is_complex() and not current.is_complex():
        _require_equal("dtype", current.dtype, new.dtype, path)
    return TensorCopy(current, new)


def _require_equal(property_name: str, current: object, new: object, path: Path) -> None:
    if current != new:
        raise ValueError(
            f"Different {property_name}: {current} vs {new} for the path of {path_text(path)}"
        )


State = MutableMapping[Tensor, Any]


class ExtendedState(State):
    """Mapping over an optimizer's state and the entries of its wrappers.

    New entries go to the optimizer's state. If that state is a defaultdict, reading a missing entry
    creates it.
    """

    def __init__(self, state: State, wrapper_state: State) -> None:
        self._state = state
        self._wrapper_state = wrapper_state

    def _holder(self, key: Any) -> State:
        return self._wrapper_state if key in self._wrapper_state else self._state

    def __getitem__(self, key: Tensor) -> Any:
        return self._holder(key)[key]

    def __setitem__(self, key: Tensor, value: Any) -> None:
        self._holder(key)[key] = value

    def __delitem__(self, key: Tensor) -> None:
        del self._holder(key)[key]

    def __iter__(self) -> Iterator[Tensor]:
        yield from self._state
        yield from self._wrapper_state

    def __len__(self) -> int:
        return len(self._state) + len(self._wrapper_state)

    def __repr__(self) -> str:
        return repr(dict(self))

    # The inherited methods use [], which would create the entries that a defaultdict lacks.

    def __contains__(self, key: object) -> bool:
        return key in self._holder(key)

    def get(self, key: Tensor, default: Any = None) -> Any:
        """Return the entry of a parameter, or the default."""
        return self._holder(key).get(key, default)

    def pop(self, key: Tensor, *default: Any) -> Any:
        """Remove and return the entry of a parameter; without one, return the default."""
        return self._holder(key).pop(key, *default)

    def setdefault(self, key: Tensor, default: Any = None) -> Any:
        """Return the entry of a parameter, after setting it to the default if there is none."""
        return self._holder(key).setdefault(key, default)


class Refused(ValueError, AssertionError):
    """Error for a wrong argument: a ValueError, and an AssertionError as torchrec raises."""


def check_state_by_parameter(optimizer: object) -> None:
    """Raise a TypeError for an optimizer with states that a keyed checkpoint cannot hold.

    A keyed checkpoint cannot hold quantized states, or states in param groups.
    """
    group_entry = "its mode, train or eval," if isinstance(optimizer, ModeOptimizer) else ""
    rule = getattr(type(optimizer), "rule", None)
    for state in rule.quantized_states if isinstance(rule, Rule) else ():
        raise TypeError(
            f"{type(optimizer).__name__} has the state {state.key} in {state.width}, which keyed "
            "checkpoints cannot hold: use this optimizer without a keyed one around it"
        )
    for state in rule.group_states if isinstance(rule, Rule) else ():
        group_entry = group_entry or f"the state {state.key}"
    if group_entry:
        raise TypeError(
            f"{type(optimizer).__name__} keeps {group_entry} in its param groups, which keyed "
            "checkpoints do not hold by default: use this optimizer without a keyed one around it"
        )
