"""Control the emulated CUDA runtime: its log, its faults, the order in which streams run.

The library is preloaded under torch, so it is already in this process. `runtime/emulation.h`
describes it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from itertools import count

LIBRARY = ctypes.CDLL(os.environ["LD_PRELOAD"])


class Kind(IntEnum):
    """Kinds of records; the numbers are those of `Kind` in emulation.h."""

    COPY = 0
    FILL = 1
    LAUNCH = 2  # of a kernel that Triton compiled
    OPERATION = 3  # of torch
    HOST_WAIT = 4
    REPLAY = 5
    STREAM_WAIT = 6
    REFUSED = 7


class Memory(IntEnum):
    """A kind of memory; the numbers are those of `Memory` in emulation.h."""

    PAGEABLE = 0
    DEVICE = 1
    PINNED = 2


class Schedule(IntEnum):
    """Times at which queued work runs; the numbers are those of `Schedule` in emulation.h."""

    LATE = 0  # when something waits for it
    AT_ONCE = 1
    RANDOM = 2


@dataclass(frozen=True)
class Record:
    """A record of the log: one call of the runtime."""

    kind: Kind
    device: int
    stream: int
    captured: bool  # a node of a graph under capture
    source: Memory  # of a copy
    target: Memory
    num_bytes: int
    title: str


class _Record(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("device", ctypes.c_int),
        ("stream", ctypes.c_ulonglong),
        ("captured", ctypes.c_int),
        ("source", ctypes.c_int),
        ("target", ctypes.c_int),
        ("num_bytes", ctypes.c_ulonglong),
        ("title", ctypes.c_char * 160),
    )


CallOnStream = ctypes.CFUNCTYPE(None, ctypes.c_long)
NewTicket = ctypes.CFUNCTYPE(ctypes.c_long)
Execute = ctypes.CFUNCTYPE(
    None,
    ctypes.c_long,  # the kernel
    ctypes.c_long,  # the number of blocks
    ctypes.POINTER(ctypes.c_ulonglong),  # arguments
    ctypes.c_long,  # their number
    ctypes.c_int,  # the device
    ctypes.c_long,  # the ticket of the launch
    ctypes.c_long,  # the ticket of the replay; 0 outside a graph
)

LIBRARY.emulated_log_size.restype = ctypes.c_long
LIBRARY.emulated_log_record.restype = ctypes.POINTER(_Record)
LIBRARY.emulated_fault_count.restype = ctypes.c_long
LIBRARY.emulated_fault.restype = ctypes.c_char_p
LIBRARY.emulated_allocated.restype = ctypes.c_ulonglong


@contextmanager
def recorded() -> Iterator[list[Record]]:
    """Record the runtime's calls; the list is filled when the context ends."""
    records: list[Record] = []
    LIBRARY.emulated_log(1)
    try:
        yield records
    finally:
        LIBRARY.emulated_log(0)
        for index in range(LIBRARY.emulated_log_size()):
            raw = LIBRARY.emulated_log_record(ctypes.c_long(index)).contents
            records.append(
                Record(
                    Kind(raw.kind),
                    raw.device,
                    raw.stream,
                    bool(raw.captured),
                    Memory(raw.source),
                    Memory(raw.target),
                    raw.num_bytes,
                    raw.title.decode(),
                )
            )


def host_waits(records: list[Record]) -> list[str]:
    """Return the calls in which the host waited for a device."""
    return [each.title for each in records if each.kind == Kind.HOST_WAIT]


def captured_copies(records: list[Record]) -> list[Record]:
    """Return the copies that became nodes of a graph."""
    return [each for each in records if each.captured and each.kind == Kind.COPY]


def launches(records: list[Record]) -> list[str]:
    """Return the names of the kernels that were launched."""
    return [each.title for each in records if each.kind == Kind.LAUNCH]


def add_fault(text: str) -> None:
    """Note what no program may do."""
    LIBRARY.emulated_add_fault(text.encode())


def take_faults() -> list[str]:
    """Return the faults since the last call."""
    faults = [
        LIBRARY.emulated_fault(ctypes.c_long(index)).decode()
        for index in range(LIBRARY.emulated_fault_count())
    ]
    LIBRARY.emulated_clear_faults()
    return faults


def set_schedule(schedule: Schedule, seed: int = 0) -> None:
    """Finish all work, and begin another schedule."""
    LIBRARY.emulated_schedule(int(schedule), ctypes.c_uint(seed))


_DEVICE_MEMORY = 1 << 30  # bytes that each device has


@contextmanager
def full_devices() -> Iterator[None]:
    """Let every device have no more memory than the process holds of it already."""
    held = max(LIBRARY.emulated_allocated(device) for device in (0, 1))
    LIBRARY.emulated_device_memory(ctypes.c_ulonglong(held))
    try:
        yield
    finally:
        LIBRARY.emulated_device_memory(ctypes.c_ulonglong(_DEVICE_MEMORY))


_calls: dict[int, tuple[Callable[[], None], bool]] = {}
_call_numbers = count()


def enqueue(stream: int, title: str, call: Callable[[], None], is_captured: bool) -> None:
    """Queue a call on a stream, given by its handle; a captured call may run many times."""
    number = next(_call_numbers)
    _calls[number] = call, is_captured
    LIBRARY.emulated_enqueue(
        ctypes.c_void_p(stream), title.encode(), _run_call, ctypes.c_long(number)
    )


@CallOnStream
def _run_call(number: int) -> None:
    call, is_captured = _calls[number]
    if not is_captured:
        del _calls[number]
    try:
        call()
    except Exception as error:  # it cannot pass through C++
        add_fault(f"{type(error).__name__}: {error}")
