"""Two gloo processes for tests: `run` calls a function in both and returns their results.

The first call starts the processes. Later calls reuse them, because starting takes seconds. After
an error, a death or a time-out both are killed, and the next call starts new ones. So no test
affects another.

`processes` starts more than two, for the tests of one module.
"""

import atexit
import faulthandler
import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ForkServer
from pathlib import Path
from typing import Any, Final
from unittest import mock

RANKS: Final = 2
_START_LIMIT: Final = 120.0  # seconds in which all processes import torch and find each other
_GRACE: Final = 2.0  # seconds for a rank to answer after another has failed, or after the limit

_PRELOADED: Final = [
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "optgen.optim",
]

Function = Callable[..., Any]  # (rank, *args), of a module: a process imports it by name


class RankError(Exception):
    """A rank's error with its traceback; after a time-out, the stacks of all ranks."""


def run(function: Function, *args: Any, limit: float = 60.0) -> list[Any]:
    """Call `function(rank, *args)` in two processes and return what rank 0 and rank 1 returned.

    Both processes are in the default process group, which is gloo's, and have the same random seed.
    Arguments and results are pickled: pass plain tensors, no DTensor.

    Raises:
        RankError: a rank raised an error or died, or it took longer than `limit` seconds.
    """
    __tracebackhide__ = True
    global _pair
    if _pair is None:
        _pair = _Ranks()
    try:
        return _pair.call(function, args, limit)
    except BaseException:
        close()
        raise


def close() -> None:
    """End both processes, if there are any."""
    global _pair
    pair, _pair = _pair, None
    if pair is not None:
        pair.kill()


@contextmanager
def processes(ranks: int) -> Iterator[Callable[..., list[Any]]]:
    """Start that many processes and yield a function like `run` for them; end them afterwards."""
    started = _Ranks(ranks)

    def run(function: Function, *args: Any, limit: float = 120.0) -> list[Any]:
        __tracebackhide__ = True
        return started.call(function, args, limit)

    try:
        yield run
    finally:
        started.kill()


@cache
def _server() -> ForkServer:
    """Return the server that forks ranks: it has imported torch, and runs no tests.

    Python's own server is not used: tests/interpreter.py starts it with another environment.
    """
    server = ForkServer()
    server.set_forkserver_preload(_PRELOADED)
    return server


def _start(context: ForkServerContext, **options: Any) -> ForkServerProcess:
    """Start a process as a fork of the server."""
    process = context.Process(**options, daemon=True)
    connect = _server().connect_to_new_process
    with mock.patch.object(forkserver, "connect_to_new_process", connect):
        process.start()
    return process


class _Ranks:
    """Processes that run, one for each rank, and a pipe to each."""

    def __init__(self, ranks: int = RANKS) -> None:
        self._ranks = ranks
        self._folder = Path(tempfile.mkdtemp(prefix="optgen-pair-"))
        context = multiprocessing.get_context("forkserver")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            arguments = (rank, ranks, theirs, self._folder)
            process = _start(context, target=_serve, args=arguments, name=f"rank {rank}")
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        try:
            self._receive_all(_START_LIMIT)
        except BaseException:
            self.kill()
            raise

    def call(self, function: Function, args: tuple[Any, ...], limit: float) -> list[Any]:
        __tracebackhide__ = True
        message = pickle.dumps((function, args, limit))
        for pipe in self._pipes:
            pipe.send_bytes(message)
        return self._receive_all(limit + _GRACE)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _receive_all(self, seconds: float) -> list[Any]:
        """Return every rank's result; raise an error if a rank has failed or is late."""
        __tracebackhide__ = True
        end = time.monotonic() + seconds
        results: dict[int, Any] = {}
        errors: list[str] = []
        waiting = dict(zip(self._pipes, range(self._ranks), strict=True))
        while waiting:
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = waiting.pop(pipe)
                failed, value = self._receive(rank)
                if failed:
                    errors.append(f"rank {rank}: {value}")
                    end = min(end, time.monotonic() + _GRACE)
                else:
                    results[rank] = value
        if errors:
            raise RankError("\n".join(errors))
        if waiting:
            late = " and ".join(f"rank {rank}" for rank in waiting.values())
            raise RankError(f"{late} did not come back in time\n{self._stacks()}")
        return [results[rank] for rank in range(self._ranks)]

    def _receive(self, rank: int) -> tuple[bool, Any]:
        """Return whether a rank has failed, and its result or its error."""
        try:
            return pickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, ConnectionError):
            self._processes[rank].join()
            return True, f"died with exit code {self._processes[rank].exitcode}"

    def _stacks(self) -> str:
        texts = [_stack_file(self._folder, rank).read_text() for rank in range(self._ranks)]
        return "\n".join(f"rank {rank}: {text}" for rank, text in enumerate(texts))


def _stack_file(folder: Path, rank: int) -> Path:
    return folder / f"stacks-{rank}"


def _serve(rank: int, ranks: int, pipe: Connection, folder: Path) -> None:
    """Run in each process: meet the other ranks, then answer calls until the parent is gone."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    with _stack_file(folder, rank).open("w") as stacks:
        try:
            _meet(rank, ranks, folder)
            answer = pickle.dumps((False, None))
        except Exception:
            answer = _pickled_traceback()
        while True:
            pipe.send_bytes(answer)
            try:
                function, args, limit = pickle.loads(pipe.recv_bytes())
            except EOFError:
                return
            except Exception:  # the function's module cannot be imported here
                answer = _pickled_traceback()
                continue
            faulthandler.dump_traceback_later(limit, file=stacks)
            answer = _call(function, rank, args)
            faulthandler.cancel_dump_traceback_later()


def _pickled_traceback() -> bytes:
    return pickle.dumps((True, traceback.format_exc()))


def _end_with_the_parent() -> None:
    """End this rank when its parent ends, even if the rank hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _meet(rank: int, ranks: int, folder: Path) -> None:
    """Join the process group of all ranks."""
    import fast_builds
    import torch
    from torch import distributed

    fast_builds.install()
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # whatever the machine's host name is
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / "store"), ranks)
    limit = timedelta(seconds=10 * _START_LIMIT)  # of gloo; longer than the limit of any call
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)


def _call(function: Function, rank: int, args: tuple[Any, ...]) -> bytes:
    """Return the pickled result, or the pickled traceback of an error."""
    import torch
    from torch import distributed

    try:
        torch.manual_seed(0)
        result = function(rank, *args)
        distributed.barrier()
        return pickle.dumps((False, result))
    except Exception:
        return _pickled_traceback()


_pair: _Ranks | None = None
atexit.register(close)
