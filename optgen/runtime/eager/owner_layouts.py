"""Layouts of the lists of a bucket whose parameters travel to their owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.rule import Rule, State
from optgen.runtime.sharded.collectives import AXES, index_in_axes
from optgen.runtime.tensors.sharding import (
    ShardedAxis,
    Sharding,
    matrix_placements,
    sharded_matrix_axis,
)

Axes: TypeAlias = tuple[ShardedAxis, ...]


class Layout(NamedTuple):
    """The layout of the tensors of one list."""

    shape: tuple[int, ...]  # of the tensor as an owner gets it
    axes: Axes  # how the tensor is sharded, outermost sharding first
    # True for a row, column or scalar state: every rank gets its tensor, not only the owner.
    is_replicated: bool = False
    written: bool = True


def travelling_axes(rule: Rule, axes: Axes, dims: int) -> Axes:
    """Return those sharded axes of a parameter that its owner needs whole.

    If each matrix steps by itself, an axis that divides whole matrices among ranks stays sharded.
    """
    if not rule.by_matrix:
        return axes
    return tuple(axis for axis in axes if AXES[index_in_axes(axis.dim, dims)] != "batch")


def layouts(
    rule: Rule,
    group: Mapping[str, Any],
    owned: Tensor,
    axes: Axes,
    matrix_axes: Callable[[int], Axes],
) -> list[Layout]:
    """Return the layouts of parameters, gradients and states.

    Args:
        rule: the rule.
        group: the parameters' group.
        owned: a meta tensor of the shape that an owner gets: the whole parameter, or with
            `by_matrix` whole matrices of this rank's share of the batch.
        axes: how a parameter is sharded.
        matrix_axes: returns the sharded axes of a matrix state that is cut along a given axis.
    """
    param_layout = Layout(tuple(owned.shape), axes)
    result = [param_layout, param_layout._replace(written=False)]
    for state in rule.states:
        if state.suits(owned):
            written = state.written and not state.step_argument
            result.append(_layout(state, rule.rank(group), owned, axes, matrix_axes, written))
    return result


def _layout(
    state: State,
    rank: int,
    owned: Tensor,
    axes: Axes,
    matrix_axes: Callable[[int], Axes],
    written: bool,
) -> Layout:
    """Return the layout of a state that parameters of this shape have."""
    if state.shape == "scalar":
        return Layout((), (), is_replicated=True, written=written)
    shape = tuple(state.shape_for(owned, rank))
    if state.shape in ("row", "col"):
        reduced_dim = owned.dim() - (1 if state.shape == "row" else 2)
        remaining_axes = tuple(axis for axis in axes if axis.dim != reduced_dim)
        return Layout(shape, remaining_axes, is_replicated=True, written=written)
    if state.shape != "like":
        axes = matrix_axes(sharded_matrix_axis(state))
    return Layout(shape, axes, written=written)


def layouts_of_shards(
    rule: Rule, group: Mapping[str, Any], seen_param: Tensor, local: Tensor, sharding: Sharding
) -> list[Layout]:
    """Return the layouts of parameters, gradients and states that are DTensors.

    Args:
        rule: the rule.
        group: the parameters' group.
        seen_param: a whole parameter in the shape that the rule sees.
        local: this rank's shard of this parameter, in the same view.
        sharding: how the parameter is sharded.
    """
    dims = seen_param.dim()
    shape = (*local.shape[:-2], *seen_param.shape[-2:]) if rule.by_matrix else seen_param.shape

    def matrix_axes(axis: int) -> Axes:
        placements = matrix_placements(sharding.placements, dims, axis)
        return travelling_axes(rule, Sharding(sharding.mesh, placements).sharded_axes(), dims)

    axes = travelling_axes(rule, sharding.sharded_axes(), dims)
    owned = torch.empty(shape, device="meta")
    return layouts(rule, group, owned, axes, matrix_axes)
