"""Give a cached step the states of groups: each parameter has a cell with its group's value.

A kernel reads and writes the cells of a parameter. All parameters of a group compute the same value
(batch/group_states.py), so after the step the group gets the value of one cell.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from optgen.runtime.fused_cpu.kernel.signature import KernelSignature
from optgen.runtime.fused_cpu.kernel.table import Table
from optgen.runtime.protocols import Group
from optgen.runtime.reader.streams import shifted_to_stream
from optgen.runtime.tensors.layout import fits_storage
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES
from optgen.runtime.torch_private import is_inference


class GroupCells:
    """Scalar cells of a table that hold states of groups, in float64."""

    def __init__(self, kernel: KernelSignature, table: Table, groups: Sequence[Group]) -> None:
        states = kernel.rule.group_states
        self._shared_keys = [state.key for state in kernel.rule.all_states]
        self._keys = [state.key for state in states]
        self._dtypes = [getattr(torch, state.dtype or "float64") for state in states]
        self._table_dtypes = table.dtypes
        bounds = accumulate((len(group["params"]) for group in groups), initial=0)
        self._param_ranges = list(pairwise(bounds))  # first and end index, by group
        count, first_stream = len(table.elements), len(kernel.keys) - len(self._keys)
        self._cells = [array("d", bytes(8 * count)) for _ in self._keys]
        for stream, cells in enumerate(self._cells, first_stream):
            first_address = cells.buffer_info()[0]
            addresses = array("q", range(first_address, first_address + 8 * count, 8))
            table.address[stream * count : (stream + 1) * count] = addresses
        code = DTYPE_CODES[torch.float64]
        streams = range(first_stream, len(kernel.keys))
        self.packed_codes = sum(shifted_to_stream(code, stream) for stream in streams)

    @staticmethod
    def fits(kernel: KernelSignature) -> bool:
        """Tell whether the cells of states of groups are the last streams of a kernel."""
        keys = [state.key for state in kernel.rule.group_states]
        return list(kernel.keys[len(kernel.keys) - len(keys) :]) == keys

    def load(self, groups: Sequence[Group]) -> bool:
        """Fill the cells; return False if a gathered step must convert a group's state first."""
        for key in self._shared_keys:
            value = groups[0].get(key)
            if not all(group.get(key) is value for group in groups):
                return False  # a user has set it in some group, and the others must follow
        for key, dtype, cells in zip(self._keys, self._dtypes, self._cells, strict=True):
            for group, (first, last) in zip(groups, self._param_ranges, strict=True):
                value = group.get(key)
                if type(value) is not Tensor or value.dtype != dtype:
                    return False
                if value.dim() or not value.is_cpu or is_inference(value):
                    return False
                if not fits_storage(value):
                    return False
                cells[first:last] = array("d", [value.item()]) * (last - first)
        return True

    def store(self, groups: Sequence[Group]) -> None:
        """Store in each group the cell of its first parameter that has a gradient."""
        for group, (first, last) in zip(groups, self._param_ranges, strict=True):
            updated = next(
                (index for index in range(first, last) if self._table_dtypes[index]), None
            )
            if updated is not None:
                for key, cells in zip(self._keys, self._cells, strict=True):
                    group[key].fill_(cells[updated])
