"""Chain optimizers into one, whose checkpoints have torch's form; divide a model between two.

Such as Muon for matrices and AdamW for all other parameters.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import Parameter, signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from optgen.contract.states import MATRIX_SHAPES, VIEW
from optgen.optim._parameter_roles import HIDDEN, OUTPUT, Role, parameter_roles
from optgen.runtime.batch.check_params import check_viewed
from optgen.runtime.joint_step import OptimizerOfMembers, loss_of, step_members
from optgen.runtime.light_optimizer import needs_closure, unchanged_after_error, with_step_hooks
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.tensors.group_view import Pieces, View, each_seen


@dataclass(frozen=True)
class Assignment:
    """The member of a chained optimizer that a parameter of a model goes to, and why."""

    name: str
    member: int
    reason: str  # what the parameter is, such as "output layer"
    view: View | Pieces | None = None  # the shapes in which the member sees it; None: its own


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


Groups = list[dict[str, Any]]


class OptimizerCall(NamedTuple):
    """The class of an optimizer, its param groups, and the other arguments of its constructor."""

    cls: Any
    groups: Groups
    arguments: dict[str, Any]

    def make(self) -> Any:
        """Make the optimizer.

        Raises:
            TypeError: the class has no such argument, or its groups no such option.
        """
        names = signature(self.cls).parameters
        takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in names.values())
        for name in () if takes_any else self.arguments:
            self._check_name(name, "argument", names)
        options = {name for group in self.groups for name in group if not takes_any}
        optimizer = self.cls(self.groups, **self.arguments)  # which adds its states to the groups
        known = {*names, *optimizer.defaults, "param_names", VIEW}
        for name in sorted(options):
            self._check_name(name, "option of a group", known)
        return optimizer

    def _check_name(self, name: str, kind: str, known: Iterable[str]) -> None:
        if name not in known:
            listed = ", ".join(sorted({*known} - {"params", "param_names"}))
            raise TypeError(f"{self.cls.__name__} has no {kind} called {name!r}: it has {listed}")


@dataclass(frozen=True)
class Patterns:
    """Patterns of names whose parameters go to the first optimizer, or to the second."""

    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ()


_log = logging.getLogger("optgen.optim")
_logged_lines: set[str] = set()


def check_accepts_all(name: str, call: OptimizerCall) -> None:
    """Raise a ValueError if a generated class cannot take a parameter of its groups.

    `name` is the class as the call of `create_optimizer` has it.
    """
    groups = call.groups if issubclass(call.cls, GeneratedOptimizer) else []
    refused = {
        param_name: param
        for group in groups
        for param_name, param in _named_params(group)
        if group.get(VIEW) is None and not _accepts(call.cls, param, None)
    }
    if not refused:
        return
    name_of_first, first_param = next(iter(refused.items()))
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    raise ValueError(
        f"{call.cls.__name__} cannot take {name_of_first!r} of shape {tuple(first_param.shape)}"
        f"{more}: give them to a second optimizer, as in create_optimizer(model, {name}, "
        'others=("adamw", {"lr": 1e-3}))'
    )


def share_model(
    model: nn.Module, first: OptimizerCall, second: OptimizerCall, patterns: Patterns
) -> ChainedOptimizer:
    """Return two optimizers as one, which share the parameters of a model.

    The first gets the matrices inside the model: those of layers, convolutions as matrices, and
    batches of matrices. The second gets all other parameters. Patterns prevail.

    Raises:
        ValueError: the model has no trainable parameter, a pattern matches no name, or one of the
            two gets no parameter.
    """
    if not any(param.requires_grad for param in model.parameters()):
        raise ValueError(
            f"{type(model).__name__} has no trainable parameter: set requires_grad where it trains"
        )
    split = _split(model, first, second, patterns)
    calls = [_with_names(call, split, index) for index, call in enumerate((first, second))]
    for index, call in enumerate(calls):
        if not call.groups:
            option = ("first_names", "others_names")[index]
            raise ValueError(
                f"{split.optimizers[index]} gets no parameter, since {split.lines()[1 - index]}: "
                f"make one optimizer, or name its parameters, as in {option}=['layers.*']"
            )
    optimizer = ChainedOptimizer([call.make() for call in calls], split=split)
    _log_once(split)
    return optimizer


def _log_once(split: Split) -> None:
    """Log how a model is shared, once for equal lines.

    Without a configured logger, Python prints lines of this level to stderr.
    """
    line = f"{'; '.join(split.lines())} (optimizer.split has all names)"
    if line not in _logged_lines:
        _logged_lines.add(line)
        _log.warning("%s", line)


def _split(
    model: nn.Module, first: OptimizerCall, second: OptimizerCall, patterns: Patterns
) -> Split:
    """Return the optimizer of each parameter."""
    params = dict(pair for group in first.groups for pair in _named_params(group))
    given_views = {n: group.get(VIEW) for group in first.groups for n in group["param_names"]}
    to_first = _matching_names(params, patterns.first)
    to_second = _matching_names(params, patterns.second)
    if both := sorted(to_first & to_second):
        raise ValueError(f"{both[0]!r} matches a pattern of first_names and one of others_names")
    roles = parameter_roles(model)
    has_hidden = any(roles[name].kind in HIDDEN for name in params)
    kinds = HIDDEN if has_hidden else (OUTPUT,)  # the output layer may be the only matrix
    is_hidden = {name: roles[name].kind in kinds and name not in to_second for name in params}
    assignments = []
    for name in filter(params.__contains__, roles):  # the model's order
        param = params[name]
        reason, view, member = roles[name].kind, given_views[name], 1
        if name in to_first or name in to_second:
            reason += ", by its name"
        if is_hidden[name] or name in to_first:
            first_view = _view_for(first.cls, param, roles[name], view)
            if name in to_first or _accepts(first.cls, param, first_view):
                view, member = first_view, 0
            else:
                reason += f", which {first.cls.__name__} does not take"
        assignments.append(Assignment(name, member, reason, view))
    return Split((first.cls.__name__, second.cls.__name__), tuple(assignments))


def _view_for(
    cls: Any, param: Tensor, role: Role, given: View | Pieces | None
) -> View | Pieces | None:
    """Return the view in which an optimizer gets a parameter: the given one, or that of its role.

    A rule that looks at no matrices gets none. Without a shape of its role, a batch that a rule
    for matrices refuses is shown as a batch of matrices.
    """
    if given is not None or not _sees_matrices(cls):
        return given
    if role.view is not None:
        return role.view if _accepts(cls, param, role.view) else None
    is_refused = param.ndim > 2 and not _accepts(cls, param, None)
    return tuple(param.shape) if is_refused else None


def _sees_matrices(cls: Any) -> bool:
    """Tell whether a class has states of matrices, or refuses parameters of other shapes."""
    if not issubclass(cls, GeneratedOptimizer) or cls.rule.elementwise:
        return False
    if any(state.shape in MATRIX_SHAPES for state in cls.rule.states):
        return True
    others = (torch.empty(shape, device="meta") for shape in [(4,), (4, 4, 4)])
    return not all(_accepts(cls, other, None) for other in others)


def _accepts(cls: Any, param: Tensor, view: View | Pieces | None) -> bool:
    """Tell whether a class takes a parameter, in the shape of a view if there is one.

    A class of another library is asked by its constructor.
    """
    try:
        if not issubclass(cls, GeneratedOptimizer):
            cls([torch.empty_like(param, device="meta")])
        elif view is None:
            cls._check_param(param)
        else:
            for seen in each_seen(view, param):
                check_viewed(cls, seen)
    except (ValueError, TypeError):
        return False
    return True


def _named_params(group: Mapping[str, Any]) -> Iterable[tuple[str, Tensor]]:
    return zip(group["param_names"], group["params"], strict=True)


def matching_names(names: Sequence[str], pattern: str) -> set[str]:
    """Return the names that match a pattern.

    Raises:
        ValueError: the pattern matches no name.
    """
    matches = {name for name in names if fnmatchcase(name, pattern)}
    if not matches:
        first_names = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        raise ValueError(f"no trainable parameter is called {pattern!r}: there are {first_names}")
    return matches


def _matching_names(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """Return the names that match a pattern.

    Raises:
        ValueError: a pattern matches no name.
    """
    candidates = [*names]
    return {name for pattern in patterns for name in matching_names(candidates, pattern)}


def _with_names(call: OptimizerCall, split: Split, member: int) -> OptimizerCall:
    """Return a call with a member's parameters only, in groups of one view each."""
    views = {each.name: each.view for each in split.assignments if each.member == member}
    results: Groups = []
    for group in call.groups:
        by_view: dict[str, dict[str, Tensor]] = {}  # by the view's text: a list is no key
        for name, param in _named_params(group):
            if name in views:
                by_view.setdefault(repr(views[name]), {})[name] = param
        for named in by_view.values():
            view = views[next(iter(named))]
            options = {key: value for key, value in group.items() if key != VIEW}
            shape = {} if view is None else {VIEW: view}
            names = {"params": [*named.values()], "param_names": [*named]}
            results.append({**options, **names, **shape})
    return call._replace(groups=results)
