"""A simulated accelerator for torch, the device "sim": what offloading needs of a GPU, anywhere.

It has its own memory, streams, events and pinned memory, and it has them as a GPU has them:

- A stream is a thread. Copies *and operators* run there, so they read and write when their stream
  comes to them: weights that are written while a backward pass still reads them give other bits.
- The host faults (SIGSEGV) if it reads or writes device memory.
- Freed memory is overwritten in the order of its stream and used again at once, unless
  `record_stream` tells of another stream.
- A copy takes `latency` seconds, its bytes divided by `to_host` or `to_device` bytes per second,
  and a part of `jitter` that is drawn from the `seed`. Pageable memory is staged, as in CUDA.
- Limits: bytes of device memory and of pinned memory. Faults: the nth copy or operator fails, and
  every later wait raises; a stalled device begins nothing. Counters: bytes held, their peaks, bytes
  copied, and the sum of all delays.

There are as many devices as DEVICE_COUNT in the environment says, one or two. They share limits,
faults and counters.

It cannot show: the speed of a GPU, graphs, NCCL, memory that is rounded up or
fragmented, two copies that share a bus. An operator whose result's shape depends on values, or
that has no meta kernel, runs on the host after a wait, and so hides races; `counts()` tells how
many did, and DEVICE_TRACE=1 in the environment prints their names.

`device.load()` builds the extension, once for each version of its sources and of torch, and
registers the device for the whole process.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from device.build import library

NAME = "sim"
SETTINGS = {
    "to_host": 0.0,
    "to_device": 0.0,
    "latency": 0.0,
    "jitter": 0.0,
    "compute": 0.0,
    "fail_after": -1,
    "fail_operator_after": -1,
    "device_limit": -1,
    "pinned_limit": -1,
    "stalled": False,
    "seed": 0,
}
"""All settings and their defaults. Bytes per second and limits in bytes; times in seconds."""
COUNTS = (
    "device",
    "device_peak",
    "pinned",
    "pinned_peak",
    "copied_to_host",
    "copied_to_device",
    "delayed_microseconds",
    "in_stream",
    "on_host",
)


@cache
def load() -> None:
    """Build the device if it is not built, and register it with torch."""
    torch.ops.load_library(str(library()))
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def configure(**settings: float) -> None:
    """Change settings.

    Raises:
        ValueError: There is no such setting.
    """
    for name, value in settings.items():
        if not _native().device_set(name.encode(), ctypes.c_double(value)):
            raise ValueError(f"the device has no setting {name!r}, only {', '.join(SETTINGS)}")


@contextmanager
def configured(**settings: float) -> Iterator[None]:
    """Change settings for a while. At the end nothing is under way, and no failure is kept."""
    configure(**settings)
    try:
        yield
    finally:
        reset()


def reset() -> None:
    """Give all settings their defaults, wait for the device, and forget its failure."""
    configure(**{name: value for name, value in SETTINGS.items() if name != "seed"})
    _native().device_clear_failure()
    for index in range(torch._C._accelerator_hooks_device_count()):
        torch.accelerator.synchronize(index)
    _native().device_clear_failure()


def counts() -> dict[str, int]:
    """Return the counters: bytes that are held and were copied, and numbers of operators."""
    return {name: _native().device_count(name.encode()) for name in COUNTS}


def reset_counts() -> None:
    """Let peaks begin at what is held now, and sums at 0."""
    _native().device_reset_counters()


@cache
def _native() -> ctypes.CDLL:
    load()
    native = ctypes.CDLL(str(library()))
    native.device_set.restype = ctypes.c_bool
    native.device_count.restype = ctypes.c_int64
    return native


def _index(device: torch.device | str | int | None) -> int | None:
    """Return the index of a device; None for the current one."""
    return device if device is None or isinstance(device, int) else torch.device(device).index


@dataclass(frozen=True)
class _Properties:
    """The properties of a device that frameworks read."""

    total_memory: int = 2**30  # bytes, for reports alone: the limit is a setting


def _device_module() -> types.ModuleType:
    """Return `torch.sim`: what torch asks of the module of a device."""
    module = types.ModuleType(f"torch.{NAME}")
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": torch._C._accelerator_hooks_device_count,
        "current_device": torch.accelerator.current_device_index,
        "set_device": torch.accelerator.set_device_index,
        "device": lambda device=None: torch.accelerator.device_index(_index(device)),
        "synchronize": lambda device=None: torch.accelerator.synchronize(device),
        "current_stream": torch.accelerator.current_stream,
        "set_stream": torch.accelerator.set_stream,
        "stream": lambda stream: stream,
        "Stream": lambda device=None, priority=0: torch.Stream(device=device or NAME),
        "Event": lambda *_, **__: torch.Event(device=NAME),
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": lambda device=None: _Properties(),
        "memory_allocated": lambda device=None: counts()["device"],
        "memory_stats": lambda device=None: {"active_bytes.all.peak": counts()["device_peak"]},
        "reset_peak_memory_stats": lambda device=None: reset_counts(),
        "empty_cache": lambda: None,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "manual_seed_all": lambda seed: None,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module
