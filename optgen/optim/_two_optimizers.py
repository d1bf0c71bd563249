"""Divide a model between two optimizers, such as Muon for matrices and AdamW for all others."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from optgen.contract.states import MATRIX_SHAPES
from optgen.optim._chained import Assignment, ChainedOptimizer, Split
from optgen.optim._param_groups import matching_names
from optgen.optim._parameter_roles import HIDDEN, OUTPUT, Role, parameter_roles
from optgen.runtime.batch.params import check_viewed
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.tensors.group_view import VIEW, View, in_view

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


def _view_for(cls: Any, param: Tensor, role: Role, given: View | None) -> View | None:
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


def _accepts(cls: Any, param: Tensor, view: View | None) -> bool:
    """Tell whether a class takes a parameter, in the shape of a view if there is one.

    A class of another library is asked by its constructor.
    """
    try:
        if not issubclass(cls, GeneratedOptimizer):
            cls([torch.empty_like(param, device="meta")])
        elif view is None:
            cls._check_param(param)
        else:
            check_viewed(cls, in_view(view, [param])[0])
    except (ValueError, TypeError):
        return False
    return True


def _named_params(group: Mapping[str, Any]) -> Iterable[tuple[str, Tensor]]:
    return zip(group["param_names"], group["params"], strict=True)


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
        by_view: dict[View | None, dict[str, Tensor]] = {}
        for name, param in _named_params(group):
            if name in views:
                by_view.setdefault(views[name], {})[name] = param
        for view, named in by_view.items():
            options = {key: value for key, value in group.items() if key != VIEW}
            shape = {} if view is None else {VIEW: view}
            names = {"params": [*named.values()], "param_names": [*named]}
            results.append({**options, **names, **shape})
    return call._replace(groups=results)
