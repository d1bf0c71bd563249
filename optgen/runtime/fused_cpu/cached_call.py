"""Call an elementwise function again: the C++ reader fetches the tensors, Python reads none."""

import ctypes
from array import array
from collections.abc import Sequence
from operator import is_
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.fused_cpu.kernel import threads
from optgen.runtime.fused_cpu.kernel.kernel import Kernel
from optgen.runtime.fused_cpu.kernel.table import Table
from optgen.runtime.reader.tensor_reader import Reader, reader


class CachedCall:
    """Cached plan of the last fused call; valid for lists of the same length."""

    def __init__(self, kernel: Kernel, tensor_reader: Reader, tensor_count: int) -> None:
        self._kernel, self._update = kernel, tensor_reader.run_call
        self._busy = Lock()  # held during a call: two threads would overwrite the attributes below
        self._table = Table(kernel, tensor_count, group_count=1)
        self._last_hypers: list[Any] = []
        self._list_addresses = array("q", bytes(8 * kernel.stream_count))
        self._buffers = tensor_reader.request_for(
            self._table, kernel, kernel.dtype_bits, torch.device("cpu")
        )
        request = self._buffers.request
        request.kernel, request.table = kernel.address, ctypes.addressof(self._table.struct)
        request.lists = self._list_addresses.buffer_info()[0]

    @classmethod
    def of(cls, kernel: Kernel, tensor_count: int) -> "CachedCall | None":
        """Return a cached call for a number of tensors; None if there is no reader."""
        tensor_reader = reader()
        return None if tensor_reader is None else cls(kernel, tensor_reader, tensor_count)

    def run(self, lists: Sequence[list[Tensor]], hypers: dict[str, Any]) -> bool:
        """Update the lists; or change nothing and return False if a batch must be gathered."""
        thread_pool = threads.current()
        if thread_pool.count > 1 and len(set(map(id, lists[0]))) < len(lists[0]):
            return False  # two threads would update one tensor
        if not self._busy.acquire(blocking=False):
            return False
        try:
            self._update_hypers([hypers[name] for name in self._kernel.rule.hypers])
            for stream, column in enumerate(lists):
                self._list_addresses[stream] = id(column)
            self._buffers.request.threads = ctypes.addressof(thread_pool)
            return bool(self._update(self._buffers.address))
        finally:
            self._busy.release()

    def _update_hypers(self, hypers: list[Any]) -> None:
        """Copy hyperparameters into the table, unless they are the numbers of the last call."""
        last = self._last_hypers
        are_numbers = all(isinstance(hyper, (int, float)) for hyper in hypers)
        if not (are_numbers and len(last) == len(hypers) and all(map(is_, hypers, last))):
            self._table.hypers[0] = self._kernel.pack_hypers(hypers)
            self._table.set_hypers()
            self._last_hypers = hypers
