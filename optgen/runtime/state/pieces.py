"""Tell which states the pieces of a parameter have, if the view of its group is a list.

A state like the parameter has the parameter's shape. Any other state is a vector: the values of one
piece after the other, since the pieces have rows, columns and matrices of other sizes. A piece that
lacks a state has no values in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from torch import Tensor

from optgen.runtime.rule import Group, Rule, State
from optgen.runtime.tensors.group_view import in_pieces, seen_params

Seen: TypeAlias = Tensor | list[Tensor]
"""A parameter in the shape that a rule sees, or its pieces."""


def seen_of_group(rule: Rule, group: Group, params: list[Tensor]) -> Sequence[Seen]:
    """Return what a rule sees of each parameter of a group."""
    pieces = rule.pieces(group)
    if pieces is None:
        return seen_params(rule, group, params)
    return [in_pieces(pieces, param) for param in params]


def suits_parameters(state: State, seen: Sequence[Seen], group: Group) -> list[bool]:
    """Tell, for each parameter, whether it has a state, or any of its pieces has it."""
    if seen and isinstance(seen[0], list):
        pieces_by_param = cast("Sequence[list[Tensor]]", seen)
        return [any(state.suits_each(pieces, group)) for pieces in pieces_by_param]
    return state.suits_each(cast("Sequence[Tensor]", seen), group)


def shapes_in_pieces(
    rule: Rule, state: State, pieces: Sequence[Tensor], group: Group
) -> list[tuple[int, ...] | None]:
    """Return the shape of a state for each piece of a parameter; None for a piece without it."""
    rank = rule.rank(group)
    pairs = zip(pieces, state.suits_each(pieces, group), strict=True)
    return [_shape(state, piece, rank) if is_suitable else None for piece, is_suitable in pairs]


def _shape(state: State, piece: Tensor, rank: int) -> tuple[int, ...]:
    return () if state.shape == "scalar" else tuple(state.shape_for(piece, rank))
