"""Update only the rows that sparse gradients touch: gather them, update them, scatter them.

A rule that works on elements or rows updates a row without looking at other rows. So any lowering
for dense tensors can take sparse gradients. The touched rows of the parameter, and of
every state that has rows, are copied to dense tensors, updated, and copied back. Step counts and
scalar states belong to the parameter: they advance once, even if no row is touched.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.rule import Rule
from optgen.runtime.tensors.dtensor import real_local_views

RowIndices = tuple[Tensor, ...]  # for each sparse dimension, the touched indices


@dataclass(frozen=True)
class TouchedRows:
    """A batch, and a batch of dense tensors: copies of its touched rows."""

    rule: Rule
    whole_batch: Batch
    row_batch: Batch
    indices: list[RowIndices]

    def scatter_rows(self) -> None:
        """Copy the updated rows back to parameters and states."""
        _scatter(self.whole_batch.params, self.row_batch.params, self.indices)
        states = zip(self.rule.states, self.whole_batch.states, self.row_batch.states, strict=True)
        for state, tensors, row_tensors in states:
            if state.written and row_tensors is not tensors:
                _scatter(tensors, row_tensors, self.indices)


def check_rows(batch: Batch) -> None:
    """Raise an IndexError for a sparse gradient that names rows outside of its parameter."""
    for param, grad in zip(batch.params, batch.grads, strict=True):
        indices = grad._indices()
        if indices.numel():
            ends = map(Tensor.tolist, indices.aminmax(dim=1))
            for low, high, row_count in zip(*ends, param.shape, strict=False):
                if low < 0 or high >= row_count:
                    raise row_index_error(low, high, row_count)


def row_index_error(low: int, high: int, row_count: int) -> IndexError:
    """Return the error for row indices outside of a parameter."""
    return IndexError(
        f"a sparse gradient names rows {low} to {high} of a parameter that has rows 0 to "
        f"{row_count - 1}"
    )


def gather_rows(rule: Rule, batch: Batch) -> TouchedRows:
    """Gather the touched rows; add up the gradients of a row that is named more than once."""
    grads = [grad.coalesce() for grad in batch.grads]
    indices = [grad.indices().unbind(0) for grad in grads]
    states = [
        _gather(tensors, indices) if state.shape in ("like", "row") else tensors
        for state, tensors in zip(rule.states, batch.states, strict=True)
    ]
    grad_rows = real_local_views([grad.values() for grad in grads])
    params = _gather(batch.params, indices)
    row_batch = replace(
        batch,
        params=params,
        grads=grad_rows,
        states=states,
        memo={},
        _noncontiguous_indices=None,
        _grad_dtypes=None,
    )
    return TouchedRows(rule, batch, row_batch, indices)


def _gather(tensors: list[Tensor], indices: list[RowIndices]) -> list[Tensor]:
    """Copy the rows with these indices of each tensor; an empty list stays empty."""
    return [
        tensor.index_select(0, index[0]) if len(index) == 1 else tensor[index]
        for tensor, index in zip(tensors, indices, strict=False)
    ]


def _scatter(tensors: list[Tensor], rows: list[Tensor], indices: list[RowIndices]) -> None:
    """Write updated rows to their indices in each tensor."""
    for tensor, updated, index in zip(tensors, rows, indices, strict=False):
        if len(index) == 1:
            tensor.index_copy_(0, index[0], updated)
        else:
            tensor.index_put_(index, updated)
