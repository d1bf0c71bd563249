"""The pool of torch's own threads, on which compiled functions run."""

import ctypes
import os
from ctypes import c_int, c_void_p
from functools import cache

import torch

_SYMBOLS = {
    "parallel": "GOMP_parallel",
    "id": "omp_get_thread_num",
    "team_size": "omp_get_num_threads",
    "barrier": "GOMP_barrier",
}
_forks: list[int] = []  # process ids of the forks that led to this process


class Threads(ctypes.Structure):
    """`Threads` of tensor_table.h, field by field."""

    _fields_ = [("count", c_int), *((name, c_void_p) for name in _SYMBOLS)]


def thread_pool(count: int | None = None) -> Threads:
    """Return the thread pool, by default with as many threads as torch uses in the calling thread.

    If a call used fewer threads than torch, the pool would end the other threads. A thread that
    never calls torch may pass another count: libgomp has a pool for each calling thread. A forked
    child has none of the pool's threads and would wait for them forever, so it uses one thread.
    """
    must_be_serial = _forks or not _functions()
    return _of_count(1 if must_be_serial else count or torch.get_num_threads())


@cache
def _of_count(count: int) -> Threads:
    """Return the thread pool with this count of threads; its fields must not be changed.

    torch has a count for each Python thread. Kernels of several Python threads run at once, and
    each reads its count when it allocates memory and when it starts its threads.
    """
    return Threads(count, *_functions())


@cache
def _functions() -> tuple[c_void_p, ...]:
    """Return the functions of torch's libgomp; another copy of libgomp would have another pool.

    Return an empty tuple if this torch has no libgomp.
    """
    process = ctypes.CDLL(None)
    if not all(hasattr(process, symbol) for symbol in _SYMBOLS.values()):
        return ()
    functions = (getattr(process, symbol) for symbol in _SYMBOLS.values())
    return tuple(ctypes.cast(function, c_void_p) for function in functions)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forks.append(os.getpid()))
