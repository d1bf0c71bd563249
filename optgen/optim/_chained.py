"""Chain optimizers into one, whose checkpoints have torch's form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from optgen.runtime.members import OptimizerOfMembers


class ChainedOptimizer(OptimizerOfMembers):
    """Several optimizers of different parameters as one.

    `param_groups` has the groups of all members, one member after another, so a scheduler sets the
    learning rates of all. A checkpoint has torch's form, with states in the order of the members.

    Args:
        members: The optimizers, in the order of their steps.

    Raises:
        ValueError: Two members have the same parameter.
    """

    def __init__(self, members: Iterable[Optimizer]) -> None:
        self.__setstate__({"members": tuple(members), "defaults": {}})
        params = [param for group in self.param_groups for param in group["params"]]
        if len({*map(id, params)}) < len(params):
            raise ValueError("a parameter belongs to two of the chained optimizers")

    def __getstate__(self) -> dict[str, Any]:
        return {"members": self.members, "defaults": self.defaults}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.members))})"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse the group, because it does not say which optimizer steps it.

        Raises:
            TypeError: Always.
        """
        raise TypeError("add the group to one of the optimizers: optimizer.members[0]")

    def train(self) -> None:
        """Put the trained weights in place, in the members that have a method `train`."""
        self._switch("train")

    def eval(self) -> None:
        """Put averaged weights in place, in the members that have a method `eval`."""
        self._switch("eval")

    def _switch(self, mode: str) -> None:
        for member in self.members:
            if hasattr(member, mode):
                getattr(member, mode)()

    def state_dict(self) -> dict[str, Any]:
        """Return the states and groups of all members in the form of torch's `state_dict`."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        packed = _join_state_dicts([member.state_dict() for member in self.members])
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            replacement = post_hook(self, packed)
            packed = packed if replacement is None else replacement
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of `state_dict`; after an error, the members are as before.

        Raises:
            ValueError: The checkpoint has other groups, or groups of other sizes.
        """
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            replacement = pre_hook(self, state_dict)
            state_dict = state_dict if replacement is None else replacement
        member_dicts = _split_state_dict(
            state_dict, [member.param_groups for member in self.members]
        )
        old_states = [{"state": m.state, "param_groups": m.param_groups} for m in self.members]
        try:
            for member, member_dict in zip(self.members, member_dicts, strict=True):
                member.load_state_dict(member_dict)
        except BaseException:
            for member, previous in zip(self.members, old_states, strict=True):
                member.__setstate__(previous)
            raise
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)


def _join_state_dicts(member_dicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one state dict of several, with parameters numbered one member after another."""
    packed: dict[str, Any] = {"state": {}, "param_groups": []}
    offset = 0
    for member_dict in member_dicts:
        packed["state"] |= {
            index + offset: values for index, values in member_dict["state"].items()
        }
        groups = member_dict["param_groups"]
        packed["param_groups"] += [
            {**group, "params": [index + offset for index in group["params"]]} for group in groups
        ]
        offset += sum(len(group["params"]) for group in groups)
    return packed


def _split_state_dict(
    packed: dict[str, Any], groups_of_members: list[list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the state dict of each member, with its parameters numbered from 0.

    Raises:
        ValueError: The groups differ in number or size from those of the members.
    """
    all_saved_groups = packed["param_groups"]
    sizes = [len(group["params"]) for groups in groups_of_members for group in groups]
    saved_sizes = [len(group["params"]) for group in all_saved_groups]
    if sizes != saved_sizes:
        raise ValueError(
            f"the checkpoint has groups of {saved_sizes} parameters, and the optimizer of {sizes}"
        )
    member_dicts, group_offset = [], 0
    for groups in groups_of_members:
        saved_groups = all_saved_groups[group_offset : group_offset + len(groups)]
        group_offset += len(groups)
        old_indices = [index for group in saved_groups for index in group["params"]]
        new_index = {old: new for new, old in enumerate(old_indices)}
        state = {
            new_index[old]: values for old, values in packed["state"].items() if old in new_index
        }
        new_groups = [
            {**group, "params": [new_index[old] for old in group["params"]]}
            for group in saved_groups
        ]
        member_dicts.append({"state": state, "param_groups": new_groups})
    return member_dicts
