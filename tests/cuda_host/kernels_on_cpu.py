"""Run the kernels that Triton compiled for a GPU, through the interpreter of PTX.

A launch may touch the memory that torch's allocator held when it was queued: what a program has
freed by then is a fault, even if nothing else uses it yet. A replayed launch may touch what was
held at its capture in the graph's own pool, and what is held at the replay.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ptxemu import Kernel, Memory
from triton import knobs

from cuda_host.emulated_runtime import LIBRARY, Execute, NewTicket, add_fault

_PARAMETER_SIZES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "f32": 4, "f64": 8}
_PARAMETER_SIZES |= {f"{sign}{8 * size}": size for sign in "su" for size in (1, 2, 4, 8)}


@dataclass(frozen=True)
class Region:
    """Memory of a device that torch's allocator holds."""

    device: int
    start: int
    size: int
    is_of_graph: bool  # in the pool of a graph


_kernels: dict[int, tuple[Kernel, int]] = {}  # with the bytes of shared memory
_by_path: dict[str, int] = {}
_tickets: dict[int, list[Region]] = {}
_numbers = count(1)


def install() -> None:
    """Register each kernel before Triton loads it, and run launches."""
    knobs.runtime.kernel_load_start_hook.add(_register)
    LIBRARY.emulated_on_launch(_new_ticket, _execute)


def _register(
    module: Any, function: Any, name: str, metadata_group: dict[str, str], digest: str
) -> None:
    """Tell the runtime which kernel is loaded next, and how large its parameters are."""
    (path,) = (path for file, path in metadata_group.items() if file.endswith(".ptx"))
    if path not in _by_path:
        _by_path[path] = number = len(_kernels)
        (metadata,) = (Path(p) for f, p in metadata_group.items() if f.endswith(".json"))
        shared = _shared_memory(metadata)
        _kernels[number] = Kernel(Path(path).read_text()), shared
    number = _by_path[path]
    sizes = [_PARAMETER_SIZES[each] for each in _kernels[number][0].params]
    LIBRARY.emulated_register(
        ctypes.c_long(number), name.encode(), (ctypes.c_int * len(sizes))(*sizes), len(sizes)
    )


def _shared_memory(metadata: Path) -> int:
    import json

    return int(json.loads(metadata.read_text())["shared"])


@NewTicket
def _new_ticket() -> int:
    number = next(_numbers)
    _tickets[number] = _held_memory()
    return number


def _held_memory() -> list[Region]:
    return [
        Region(
            segment["device"],
            block["address"],
            block["requested_size"],
            segment["segment_pool_id"] != (0, 0),
        )
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] != "inactive"
    ]


@Execute
def _execute(
    number: int, grid: int, arguments: Any, num_arguments: int, device: int, ticket: int, replay: int
) -> None:
    try:
        kernel, shared = _kernels[number]
        regions = _tickets[ticket]
        if replay:
            regions = [each for each in regions if each.is_of_graph] + _tickets[replay]
        memory = Memory()
        for region in regions:
            if region.device == device:
                memory.add(region.start, region.size, "device memory")
        memory.freeze()
        order = np.random.default_rng(ticket).permutation(grid)
        kernel.run(grid, arguments[:num_arguments], memory, shared, order)
    except Exception as error:  # it cannot pass through C++
        add_fault(f"{type(error).__name__}: {error}")
