"""Chain optimizers into one, whose checkpoints have torch's form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from optgen.runtime.light_optimizer import needs_closure, unchanged_after_error, with_step_hooks
from optgen.runtime.members import OptimizerOfMembers, loss_of, step_members


@dataclass(frozen=True)
class Assignment:
    """The member of a chained optimizer that a parameter of a model goes to, and why."""

    name: str
    member: int
    reason: str  # what the parameter is, such as "output layer"
    view: tuple[int, ...] | None = None  # the shape in which the member sees it; None: its own


@dataclass(frozen=True)
class Split:
    """Result of sharing the parameters of a model among the members of a chained optimizer.

    `str` has a line for each parameter.
    """

    optimizers: tuple[str, ...]  # the names of the members' classes
    assignments: tuple[Assignment, ...]

    def names(self, member: int) -> list[str]:
        """Return the names of the parameters of a member."""
        return [each.name for each in self.assignments if each.member == member]

    def lines(self) -> list[str]:
        """Return a line for each member: how many parameters it gets, and what they are."""
        return [f"{title} gets {self._parts(index)}" for index, title in enumerate(self.optimizers)]

    def _parts(self, member: int) -> str:
        """Return the counts of a member's parameters; few of a kind are named."""
        own = [each for each in self.assignments if each.member == member]
        counts = Counter(each.reason for each in own)
        parts = []
        for reason, count in sorted(counts.items(), key=lambda item: "vector" in item[0]):
            names = [each.name for each in own if each.reason == reason]
            is_named = count <= 2 and reason not in ("matrix", "vector")
            parts.append(f"{count} × {reason}" + f" ({', '.join(names)})" * is_named)
        return ", ".join(parts) or "nothing"

    def __str__(self) -> str:
        return "\n".join(
            f"{each.name}: {self.optimizers[each.member]}, {each.reason}"
            f"{'' if each.view is None else f', view {each.view}'}"
            for each in self.assignments
        )


class ChainedOptimizer(OptimizerOfMembers):
    """Several optimizers of different parameters as one.

    `param_groups` has the groups of all members, one member after another, so a scheduler sets the
    learning rates of all. A checkpoint has torch's form, with states in the order of the members.

    A step that a member refuses changes nothing, if optgen generated the members. Closures, hooks,
    schedulers and `GradScaler` work as with any optimizer.

    Args:
        members: The optimizers: optgen's, torch's or others.
        split: How they share the parameters of a model, if `create_optimizer` made them.

    Raises:
        ValueError: Two members have the same parameter.
        TypeError: A member is no optimizer, or its step needs a closure, as LBFGS's does.
    """

    split: Split | None

    def __init__(self, members: Iterable[Optimizer], *, split: Split | None = None) -> None:
        if isinstance(members, Optimizer):
            raise TypeError("ChainedOptimizer takes a list of optimizers, not one optimizer")
        self.__setstate__({"members": tuple(members), "defaults": {}, "split": split})
        for member in self.members:
            if not isinstance(member, Optimizer):
                raise TypeError(f"ChainedOptimizer takes optimizers, not {member!r}")
            if needs_closure(member):
                raise TypeError(
                    f"{type(member).__name__} calls the closure several times in a step, and a "
                    "ChainedOptimizer calls it once for all members: step that one by itself"
                )
        params = [param for group in self.param_groups for param in group["params"]]
        if len({*map(id, params)}) < len(params):
            raise ValueError("a parameter belongs to two of the chained optimizers")

    def __getstate__(self) -> dict[str, Any]:
        return {"members": self.members, "defaults": self.defaults, "split": self.split}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.members))})"

    def notes(self) -> list[str]:
        """Return what `optgen.explain` says before the groups: what each member gets."""
        return [] if self.split is None else self.split.lines()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse the group, because it does not say which optimizer steps it.

        Raises:
            TypeError: Always.
        """
        raise TypeError("add the group to one of the optimizers: optimizer.members[0]")

    @with_step_hooks
    def step(self, closure: Any = None, **inputs: Sequence[Tensor | None] | None) -> Any:
        """Take a step with every member, or change nothing if one of them refuses.

        Args:
            closure: Reevaluates the model and returns the loss; called once, before all steps.
            **inputs: Extra inputs of the members' rules: for each parameter in the order of
                `param_groups`, a tensor or None.

        Returns:
            The loss, or None without a closure.

        Raises:
            TypeError: No member's rule has such an input.
            ValueError: An input has the wrong length.
        """
        inputs_of_members = self._divide(inputs)
        loss = loss_of(closure)
        step_members(self.members, inputs_of_members)
        return loss

    def _divide(self, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the inputs of each member: those that its rule has, for its own parameters."""
        counts = [sum(len(g["params"]) for g in m.param_groups) for m in self.members]
        results: list[dict[str, Any]] = [{} for _ in counts]
        for name, values in inputs.items():
            takers = [
                index
                for index, member in enumerate(self.members)
                if any(each.step_argument == name for each in _inputs_of(member))
            ]
            if not takers:
                raise TypeError(f"no member's step has an argument {name!r}")
            if values is not None and len(values) != sum(counts):
                raise ValueError(
                    f"{name} has {len(values)} entries, and the members have {sum(counts)} "
                    "parameters: give a tensor or None for each, in the order of param_groups"
                )
            for index in takers:
                start = sum(counts[:index])
                own = None if values is None else values[start : start + counts[index]]
                results[index][name] = own
        return results

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
        with unchanged_after_error(self.members):
            for member, member_dict in zip(self.members, member_dicts, strict=True):
                member.load_state_dict(member_dict)
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)


def _inputs_of(member: Any) -> tuple[Any, ...]:
    """Return the extra inputs of a member's rule; () for a member without a rule."""
    rule = getattr(member, "rule", None)
    return () if rule is None else rule.inputs


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
