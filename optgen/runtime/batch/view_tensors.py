"""View a batch's tensors in the shape of its group's view.

The memory of some tensors cannot be viewed in this shape: that of a transposed parameter, for
example, in most shapes. Such tensors are copied; the step updates the copies and writes them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch, ViewCopy
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.tensors.sharding import shard_sizes

Sizes = Sequence[int]


def view_tensors(rule: Rule, batch: Batch) -> None:
    """Replace a batch's parameters, gradients and states by views shaped like `batch.meta_views`.

    States with a number for each row or column, and scalar states, already have their shape in
    the view.

    Raises:
        RuntimeError: A gradient or a state has another shape than its parameter.
    """
    viewer = _Viewer(batch)
    states = [
        viewer.views(state.key, column, state.written) if state.shape == "like" else column
        for state, column in zip(rule.states, batch.states, strict=True)
    ]
    grads = viewer.views("a gradient", batch.grads, is_gradient=True)
    batch.params, batch.grads = viewer.views("a parameter", batch.params), grads
    batch.states, batch.view_copies = states, viewer.copies


def write_back(batch: Batch, with_gradients: bool) -> None:
    """Write updated copies to their originals; copies of gradients only if the step wrote them."""
    for copy in batch.view_copies:
        if with_gradients or not copy.is_gradient:
            copy.write_back()


class _Viewer:
    """Views the tensors of a batch, or copies them; keeps the copies that a step updates."""

    def __init__(self, batch: Batch) -> None:
        self._shapes = [param.shape for param in batch.params]
        pairs = zip(batch.members, batch.meta_views, strict=True)
        self._sizes = [shard_sizes(member, meta_view.shape) for member, meta_view in pairs]
        # Copies by the identity of the original: a parameter that is listed twice needs one copy.
        self._copies_by_id: dict[int, Tensor] = {}
        self.copies: list[ViewCopy] = []

    def views(
        self, name: str, column: list[Any], written: bool = True, is_gradient: bool = False
    ) -> list[Any]:
        """Return views or copies of tensors; an absent state is None and stays None."""
        views: list[Tensor | None] = []
        for index, tensor in enumerate(column):
            if tensor is None:
                views.append(None)
                continue
            if tensor.shape != self._shapes[index]:
                raise _shape_error(name, tensor.shape, self._shapes[index])
            view, is_copy = self._view(tensor, self._sizes[index])
            if is_copy and written:
                self.copies.append(ViewCopy(index, tensor, view, is_gradient))
            views.append(view)
        return views

    def _view(self, tensor: Tensor, sizes: Sizes) -> tuple[Tensor, bool]:
        """View a tensor in other sizes, or copy it; tell whether it is a copy."""
        try:
            if isinstance(tensor, QuantizedTensor):
                return tensor.view_codes(sizes), False
            return tensor.view(sizes), False
        except RuntimeError:  # torch cannot tell in advance whether a view is possible
            copy = self._copies_by_id.get(id(tensor))
            if copy is None:
                copy = self._copies_by_id[id(tensor)] = tensor.reshape(sizes)
            return copy, True


def _shape_error(name: str, shape: torch.Size, param_shape: torch.Size) -> RuntimeError:
    return RuntimeError(
        f"{name} has the shape {tuple(shape)}, but its parameter {tuple(param_shape)}: a step with "
        "a view needs equal shapes"
    )
