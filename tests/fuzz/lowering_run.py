"""Step a rule's optimizer in one lowering, on two ranks of one process for `sharded`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from owners import step_by_owners
from sharded_step import step_on_shards
from torch import Tensor

from fuzz import extra_inputs, group_reductions
from fuzz.build import BuiltRule
from fuzz.oracle import PARAM
from optgen import use_lowering
from optgen.runtime.eager import call
from optgen.runtime.state.pieces import shapes_in_pieces
from optgen.runtime.tensors.quantized import to_numbers

if TYPE_CHECKING:
    from fuzz.trial import Setting


class LoweringRun:
    """An optimizer that one lowering steps, and its parameters."""

    def __init__(
        self, rule: BuiltRule, name: str, initial_values: list[Tensor], setting: Setting
    ) -> None:
        is_functional = name == "functional"
        self.name, self.rule = name, rule
        self.axis = setting.seed  # the sharded axis, modulo the number of axes
        self.shapes = [x.shape for x in initial_values]
        are_pieces = group_reductions.are_pieces(setting)
        self.in_pieces = are_pieces and _takes_pieces(rule.cls.rule)
        self.viewed = setting.viewed and not are_pieces
        self.has_group_per_param = group_reductions.group_index(setting, 1) == 1
        self.params = [
            torch.nn.Parameter(
                (x.reshape(_other_shape(x)) if self.viewed else x).clone(),
                requires_grad=not is_functional,
            )
            for x in ([_joined(initial_values)] if self.in_pieces else initial_values)
        ]
        self.optimizer = rule.cls(
            self.groups(setting), **setting.hypers, differentiable=is_functional
        )
        self.forced_lowering = {"functional": "forloop", "sharded": "foreach"}.get(name, name)

    def groups(self, setting: Setting) -> list[Any]:
        """Return the parameters; with views and for some seeds, return a group for each."""
        if self.in_pieces:
            return [{"params": self.params, "view": [tuple(shape) for shape in self.shapes]}]
        if not self.has_group_per_param:
            return self.params
        algorithm = self.rule.algorithm
        options = [
            group_reductions.options_of_group(algorithm, setting, i)
            for i in range(len(self.params))
        ]
        groups = [{"params": [p], **own} for p, own in zip(self.params, options, strict=True)]
        views = [{"view": tuple(shape)} if self.viewed else {} for shape in self.shapes]
        return [group | view for group, view in zip(groups, views, strict=True)]

    def step(self, grads: list[Tensor], inputs: extra_inputs.ExtraInputs) -> None:
        """Take a step with these gradients and extra inputs."""
        own_grads = [_joined(grads)] if self.in_pieces else grads
        for param, grad in zip(self.params, own_grads, strict=True):
            param.grad = grad.clone().reshape(param.shape)
        is_sharded = self.name == "sharded"
        with (
            self.on_two_ranks() if is_sharded else contextlib.nullcontext(),
            use_lowering(self.forced_lowering),
        ):
            self.optimizer.step(
                **{key: self._argument(key, given) for key, given in inputs.items()}
            )

    def on_two_ranks(self) -> contextlib.AbstractContextManager[None]:
        """Let two ranks take the steps, with foreach's functions."""
        if self.rule.cls.rule.why_uncut:
            return two_ranks_as_owners(self.rule, self.axis, self.optimizer.param_groups[0])
        return two_ranks_with_shards(self.rule, self.axis)

    def _argument(self, key: str, given: Sequence[Tensor | None]) -> Any:
        """Return extra inputs as `step` takes them: in the shapes of parameters, not of views."""
        (shape,) = (s.shape for s in self.rule.cls.rule.inputs if s.step_argument == key)
        if shape != "like":
            return given[0] if shape == "scalar" else given
        pairs = zip(given, self.params, strict=True)
        return [None if each is None else each.view(param.shape) for each, param in pairs]

    def values(self, index: int) -> dict[str, Tensor]:
        """Return a parameter and its states, by key."""
        found = self._tensors(index)
        group = self.group(index)
        found |= {key: group[key] for key in self.group_state_keys}
        found = {key: to_numbers(value) for key, value in found.items()}
        if self.viewed:
            keys_like_param = [
                PARAM,
                *(s.key for s in self.rule.cls.rule.states if s.shape == "like"),
            ]
            found |= {
                key: found[key].view(self.shapes[index]) for key in keys_like_param if key in found
            }
        return found

    @property
    def group_state_keys(self) -> list[str]:
        """Return the keys of the states that a param group holds."""
        return [state.key for state in self.rule.cls.rule.group_states]

    def group(self, index: int) -> dict[str, Any]:
        """Return the group of a parameter."""
        groups = self.optimizer.param_groups
        return groups[index if self.has_group_per_param else 0]

    def set_values(self, values: list[tuple[Tensor, dict[str, Any]]]) -> None:
        """Copy these values to parameters and states."""
        for index, (value, state) in enumerate(values):
            with torch.no_grad():
                tensors = self._tensors(index)
                tensors[PARAM].copy_(value.reshape(tensors[PARAM].shape))
                for key, each in state.items():
                    if key != "step":
                        is_shared = key in self.group_state_keys
                        holder = self.group(index) if is_shared else tensors
                        holder[key].copy_(each.reshape(holder[key].shape))

    def _tensors(self, index: int) -> dict[str, Tensor]:
        """Return a parameter and its states, or those of a piece, by key."""
        param = self.params[0 if self.in_pieces else index]
        state = self.optimizer.state[param]
        tensors = {PARAM: param, **{key: torch.as_tensor(value) for key, value in state.items()}}
        if not self.in_pieces:
            return tensors
        like = list(map(tuple, self.shapes))
        found = {key: value for key, value in tensors.items() if key == "step"}
        found[PARAM] = _piece(param, like, like, index)
        pieces = [torch.empty(shape, device="meta") for shape in like]
        for each in self.rule.cls.rule.states:
            shapes = shapes_in_pieces(self.rule.cls.rule, each, pieces, self.group(0))
            if each.key in tensors and shapes[index] is not None:
                stored_shapes = like if each.shape == "like" else shapes
                found[each.key] = _piece(tensors[each.key], stored_shapes, shapes, index)
        return found


def _takes_pieces(rule: Any) -> bool:
    """Tell whether the parameters may be pieces: an elementwise rule sees no pieces."""
    has_blocks_across_pieces = bool(rule.quantized_states)
    return not (rule.elementwise or rule.inputs or has_blocks_across_pieces)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _piece(tensor: Tensor, stored_shapes: Sequence[Any], shapes: Sequence[Any], index: int) -> Any:
    """Return a piece of a state; a stored shape is None if a piece has no values in it."""
    sizes = [0 if shape is None else prod(shape) for shape in stored_shapes]
    return tensor.detach().view(-1).split(sizes)[index].view(shapes[index])


def _other_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return a shape with as many elements but another number of axes."""
    return (1, tensor.numel()) if tensor.dim() == 1 else (tensor.numel(),)


@contextlib.contextmanager
def two_ranks_with_shards(rule: BuiltRule, axis: int) -> Iterator[None]:
    """Let two ranks with shards take foreach's steps, through `update_sharded` if it exists."""

    def load(package: str, module: str, function: str) -> Any:
        foreach_module = import_module(f"{package}.{module}")
        update = getattr(foreach_module, function.replace("update", "update_sharded"), None)
        rule_info = rule.cls.rule

        def step(*columns: list[Tensor], **keywords: Any) -> None:
            first = columns[0][0]
            state_shapes = [
                state.shape for state in rule_info.states if state.suits(first, keywords)
            ]
            shapes = ["like", "like", *state_shapes, *["scalar"] * (rule_info.step is not None)]
            step_on_shards(request_reductions, axis % first.dim(), shapes, columns, **keywords)

        def request_reductions(*columns: list[Tensor], **keywords: Any) -> Iterator[Any]:
            yield from update(*columns, **keywords) or ()  # without phases, `update` returns None

        def step_unless_0_dim(*columns: list[Tensor], **keywords: Any) -> None:
            is_0_dim = columns[0][0].dim() == 0
            (getattr(foreach_module, function) if is_0_dim else step)(*columns, **keywords)

        return step_unless_0_dim if update else getattr(foreach_module, function)

    with mock.patch.object(call, "load_function", load):
        yield


@contextlib.contextmanager
def two_ranks_as_owners(rule: BuiltRule, axis: int, group: Mapping[str, Any]) -> Iterator[None]:
    """Let two ranks with shards take foreach's steps; each parameter is stepped by its owner."""
    rule_info = rule.cls.rule

    def load(package: str, module: str, function: str) -> Any:
        step_whole = getattr(import_module(f"{package}.{module}"), function)

        def step(*columns: list[Tensor], **keywords: Any) -> Any:
            num_axes = columns[0][0].dim()
            if not num_axes:
                return step_whole(*columns, **keywords)
            steps = step_by_owners(rule_info, group, step_whole, axis % num_axes, columns, keywords)
            return steps if rule_info.wide else next(steps, None)

        return step

    with mock.patch.object(call, "load_function", load):
        yield
