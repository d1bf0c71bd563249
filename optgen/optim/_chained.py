"""Chain optimizers into one, whose checkpoints have torch's form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from optgen.runtime.members import OptimizerOfMembers


class ChainedOptimizer(OptimizerOfMembers):
    """Several optimizers of different parameters as one.

    `param_groups` has the groups of all members, one member after another, so a scheduler sets the
    learning rates of all. A checkpoint has torch's form, with the members' states in this order.

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
        """Call `train` of the members that have it: it puts the trained weights in place."""
        self._switch("train")

    def eval(self) -> None:
        """Call `eval` of the members that have it: it puts averaged weights in place."""
        self._switch("eval")

    def _switch(self, mode: str) -> None:
        for member in self.members:
            if hasattr(member, mode):
                getattr(member, mode)()

    def state_dict(self) -> dict[str, Any]:
        """Return the states and groups of all members in the form of torch's `state_dict`."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        packed = _joined([member.state_dict() for member in self.members])
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            replaced = post_hook(self, packed)
            packed = packed if replaced is None else replaced
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of `state_dict`; after an error, the members are as before.

        Raises:
            ValueError: The checkpoint has other groups, or groups of other sizes.
        """
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = pre_hook(self, state_dict)
            state_dict = state_dict if replaced is None else replaced
        parts = _divided(state_dict, [member.param_groups for member in self.members])
        before = [{"state": m.state, "param_groups": m.param_groups} for m in self.members]
        try:
            for member, part in zip(self.members, parts, strict=True):
                member.load_state_dict(part)
        except BaseException:
            for member, previous in zip(self.members, before, strict=True):
                member.__setstate__(previous)
            raise
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one state dict of several: each counts its parameters from the end of the last."""
    packed: dict[str, Any] = {"state": {}, "param_groups": []}
    first = 0
    for part in parts:
        packed["state"] |= {index + first: values for index, values in part["state"].items()}
        groups = part["param_groups"]
        packed["param_groups"] += [
            {**group, "params": [index + first for index in group["params"]]} for group in groups
        ]
        first += sum(len(group["params"]) for group in groups)
    return packed


def _divided(packed: dict[str, Any], members: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the state dict of each member, with its own parameters counted from 0.

    Raises:
        ValueError: The groups differ in number or size from those of the members.
    """
    saved = packed["param_groups"]
    ours = [len(group["params"]) for groups in members for group in groups]
    theirs = [len(group["params"]) for group in saved]
    if ours != theirs:
        raise ValueError(
            f"the checkpoint has groups of {theirs} parameters, and the optimizer of {ours}"
        )
    parts, first = [], 0
    for groups in members:
        chosen = saved[first : first + len(groups)]
        first += len(groups)
        indices = [index for group in chosen for index in group["params"]]
        position = {index: place for place, index in enumerate(indices)}
        state = {position[key]: each for key, each in packed["state"].items() if key in position}
        moved = [{**group, "params": [position[i] for i in group["params"]]} for group in chosen]
        parts.append({"state": state, "param_groups": moved})
    return parts
