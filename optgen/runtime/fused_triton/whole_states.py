"""Gather the row and column states of shards: a finish takes the lines of whole matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from optgen.runtime.fused_triton.held_matrices import HeldMatrices
from optgen.runtime.fused_triton.line_exchange import LineExchange, Values, copy_all
from optgen.runtime.fused_triton.tensor_streams import StreamTensors
from optgen.runtime.sharded.reductions import PartialReduction


class WholeStates:
    """Tensors that hold the row and column states of whole matrices during a step.

    Args:
        held: What this rank holds of each parameter; () if the parameters are no shards.
        streams: The tensors of every stream that is not of scalars.
        shapes: The shape of each stream that is a state, by its index.
    """

    def __init__(
        self, held: Sequence[HeldMatrices], streams: StreamTensors, shapes: Mapping[int, str]
    ) -> None:
        self._values: dict[tuple[int, int], Values] = {}  # by the indices of stream and tensor
        for stream, shape in shapes.items():
            if shape not in ("row", "col") or not streams[stream]:
                continue
            for index, each in enumerate(held):
                lines = each.rows if shape == "row" else each.columns
                if lines.axes:
                    like = streams[stream][index]
                    whole = torch.empty(
                        each.matrices, lines.size, dtype=like.dtype, device=like.device
                    )
                    self._values[stream, index] = Values(whole, lines, lines.groups)
        self._exchange = LineExchange(list(self._values.values())) if self._values else None

    def __contains__(self, key: object) -> bool:
        """Tell whether a tensor is replaced, from the indices of its stream and of the tensor."""
        return key in self._values

    def replace(self, streams: StreamTensors) -> list[Tensor]:
        """Put the tensors for whole matrices in the place of this rank's parts; return the parts.

        The tensors have undefined values until the ranks have answered the requests.
        """
        parts = []
        for (stream, index), values in self._values.items():
            parts.append(streams[stream][index])
            streams[stream][index] = values.target
        return parts

    def request(self, parts: Sequence[Tensor]) -> list[PartialReduction]:
        """Return requests for the states of whole matrices, of which this rank has parts."""
        return self._exchange.request(parts) if self._exchange and parts else []

    def finish(self) -> None:
        """Store the answers to the requests."""
        if self._exchange:
            self._exchange.finish()

    def store(self, parts: Sequence[Tensor]) -> None:
        """Copy what a finish has stored for this rank's lines back to its parts."""
        if parts:
            values = self._values.values()
            copy_all(parts, [each.lines.held(each.target) for each in values])
