"""Cut the tensors of a batch into pieces, if the view of its group is a list.

The rule sees each piece as if it were a parameter. A state like the parameter is cut as the
parameter is. A piece has rows, columns, matrices and scalars of its own: the state of the parameter
is a vector, with the values of one piece after the other. All pieces have the parameter's step
count; a step counts in copies, one for each piece, since it adds 1 to each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch, ViewCopy
from optgen.runtime.rule import Rule, State
from optgen.runtime.state.pieces import shapes_in_pieces
from optgen.runtime.tensors.group_view import Pieces, in_pieces
from optgen.runtime.tensors.quantized import to_numbers


class ScalarsOfPieces(NamedTuple):
    """Scalars of a parameter's pieces; a lowering may have put others into the pieces' dicts."""

    param_index: int  # index of the first piece in the batch
    original: Tensor
    dicts: list[dict[str, Any]]  # the pieces' dicts
    key: str
    is_gradient: bool = False

    def write_back(self) -> None:
        """Write the scalars to the original: to a step count, that of the first piece."""
        count = self.original.numel()
        values = [values[self.key] for values in self.dicts if self.key in values]
        self.original.copy_(torch.stack(values[:count]).view(self.original.shape))


def cut_into_pieces(rule: Rule, batch: Batch, pieces: Pieces) -> None:
    """Replace all tensors of a batch by those of the pieces of its parameters.

    Raises:
        RuntimeError: A gradient or a state has another shape than its parameter or its pieces ask
            for; or a parameter stands in the group twice.
    """
    if len({id(param) for param in batch.members}) < len(batch.members):
        raise RuntimeError(
            "a parameter stands in the group more than once: with a view of several pieces, list "
            "it once"
        )
    _Cutter(rule, batch, pieces).cut()


class _Cutter:
    """Cutter of one batch."""

    def __init__(self, rule: Rule, batch: Batch, pieces: Pieces) -> None:
        self.rule, self.batch, self.group = rule, batch, batch.group
        self.shapes = [param.shape for param in batch.params]
        self.pieces = [in_pieces(pieces, param) for param in batch.members]  # meta tensors
        self.first = [0, *accumulate(map(len, self.pieces))]  # index of each first piece
        self.copies: list[Any] = []
        self.dicts: list[dict[str, Any]] = [{} for each in self.pieces for _ in each]

    def cut(self) -> None:
        """Replace the tensors of the batch."""
        batch = self.batch
        states = [
            self._state(state, column)
            for state, column in zip(self.rule.states, batch.states, strict=True)
        ]
        grads = self._like("a gradient", batch.grads, written=True, is_gradient=True)
        batch.params, batch.grads = self._like("a parameter", batch.params, written=True), grads
        batch.states, batch.step_counts = states, self._step_counts()
        batch.whole_dicts = [values for values, _ in self._with_pieces(batch.dicts)]
        batch.dicts = self.dicts if batch.dicts else []
        batch.fresh = {
            key: [flag for flag, _ in self._with_pieces(flags)]
            for key, flags in batch.fresh.items()
        }
        batch.members, batch.view_copies = list(batch.params), self.copies
        batch.in_pieces = True

    def _with_pieces(self, column: Sequence[Any]) -> list[tuple[Any, int]]:
        """Return each value of a column once for each piece of its parameter, with an index."""
        return [
            (value, index)
            for index, value in enumerate(column)
            for _ in range(self.first[index], self.first[index + 1])
        ]

    def _like(
        self, name: str, column: Sequence[Tensor | None], written: bool, is_gradient: bool = False
    ) -> list[Any]:
        """Return the pieces of tensors of the parameters' shapes; an absent tensor stays None."""
        found: list[Tensor | None] = []
        for index, tensor in enumerate(column):
            if tensor is None:
                found += [None] * len(self.pieces[index])
                continue
            if tensor.shape != self.shapes[index]:
                raise RuntimeError(
                    f"{name} has the shape {tuple(tensor.shape)}, but its parameter "
                    f"{tuple(self.shapes[index])}: a step with a view needs equal shapes"
                )
            flat, is_copy = _flat(tensor)
            if is_copy and written:
                self.copies.append(ViewCopy(self.first[index], tensor, flat, is_gradient))
            found += _cut(flat, [piece.shape for piece in self.pieces[index]])
        return found

    def _state(self, state: State, column: list[Any]) -> list[Any]:
        """Return a column of the pieces' states; [] if there is none."""
        if not column:
            return []
        if state.of_group:
            return [value.clone() for value, _ in self._with_pieces(column)]
        if state.step_argument and state.shape == "scalar":
            return [value for value, _ in self._with_pieces(column)]
        if state.step_argument and state.shape != "like":
            raise RuntimeError(
                f"{state.step_argument} has another shape than the parameter, which the view of "
                "its group cuts into pieces: give the model a parameter for each piece"
            )
        if state.shape == "like":
            found = self._like(state.key, column, state.written)
            seen = [piece for pieces in self.pieces for piece in pieces]
            suitable = state.suits_each(seen, self.group)
            found = [each if suits else None for each, suits in zip(found, suitable, strict=True)]
        else:
            found = [
                value
                for index, tensor in enumerate(column)
                for value in self._own(state, tensor, index)
            ]
        for values, value in zip(self.dicts, found, strict=True):
            if value is not None and not state.step_argument:
                values[state.key] = value
        return found if any(value is not None for value in found) else []

    def _own(self, state: State, tensor: Tensor | None, index: int) -> list[Any]:
        """Return the pieces' own values of a state: rows, columns, matrices or scalars."""
        pieces = self.pieces[index]
        if tensor is None:
            return [None] * len(pieces)
        shapes = shapes_in_pieces(self.rule, state, pieces, self.group)
        expected = sum(prod(shape) for shape in shapes if shape is not None)
        if tensor.shape != (expected,):
            raise RuntimeError(
                f"{state.key} has the shape {tuple(tensor.shape)}, but the pieces of its parameter "
                f"{tuple(self.shapes[index])} have {expected} numbers in it, with "
                f"view={[tuple(piece.shape) for piece in pieces]}: give the group the view that "
                "the state was made with, or clear the optimizer's state for the parameter"
            )
        values = iter(_cut(tensor, [shape for shape in shapes if shape is not None]))
        own = [None if shape is None else next(values) for shape in shapes]
        if state.shape == "scalar":
            dicts = self.dicts[self.first[index] : self.first[index + 1]]
            self.copies.append(ScalarsOfPieces(self.first[index], tensor, dicts, state.key))
        return own

    def _step_counts(self) -> list[Any]:
        """Return a copy of its parameter's step count for each piece."""
        counts = []
        for position, (count, index) in enumerate(self._with_pieces(self.batch.step_counts)):
            counts.append(count.clone())
            self.dicts[position]["step"] = counts[-1]
            if position == self.first[index] and self.rule.step == "tensor":
                dicts = self.dicts[position : self.first[index + 1]]
                self.copies.append(ScalarsOfPieces(position, count, dicts, "step"))
        return counts


def _flat(tensor: Tensor) -> tuple[Tensor, bool]:
    """Return the elements in row-major order, and whether they are a copy; codes are numbers."""
    numbers = to_numbers(tensor)
    try:
        return numbers.view(-1), numbers is not tensor
    except RuntimeError:  # torch cannot tell in advance whether a view is possible
        return numbers.reshape(-1), True


def _cut(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return views of consecutive elements of a vector, in these shapes."""
    ends = accumulate(map(prod, shapes), initial=0)
    return [
        flat[first:end].view(tuple(shape))
        for (first, end), shape in zip(pairwise(ends), shapes, strict=True)
    ]
