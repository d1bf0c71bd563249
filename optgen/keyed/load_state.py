"""Load state and groups by name, in place, after checking everything."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from optgen.keyed.errors import Refused
from optgen.keyed.load_tensors import Path, TensorCopy, path_text, tensor_copies, type_name

Groups = Collection[Mapping[str, Any]]


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
