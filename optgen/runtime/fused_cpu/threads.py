"""The threads a compiled kernel may use: torch's own."""

import ctypes
import os
from ctypes import c_int, c_void_p
from functools import cache

import torch

_NAMES = {
    "parallel": "GOMP_parallel",
    "id": "omp_get_thread_num",
    "team": "omp_get_num_threads",
    "barrier": "GOMP_barrier",
}
_children: list[int] = []


class Threads(ctypes.Structure):
    """`Threads` of tensor_table.h, field by field."""

    _fields_ = [("count", c_int), *((name, c_void_p) for name in _NAMES)]


def current() -> Threads:
    """As many threads as torch uses: a smaller team would make its pool end the others.

    One in a forked child, which has none of the pool's threads and would wait for them for ever.
    """
    threads = _found()
    serial = _children or not threads.parallel
    threads.count = 1 if serial else torch.get_num_threads()
    return threads


@cache
def _found() -> Threads:
    """libgomp as torch has brought it into the process; another one would have another pool."""
    process = ctypes.CDLL(None)
    if not all(hasattr(process, symbol) for symbol in _NAMES.values()):
        return Threads()
    functions = (getattr(process, symbol) for symbol in _NAMES.values())
    return Threads(1, *(ctypes.cast(function, c_void_p) for function in functions))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _children.append(os.getpid()))
