"""Run the kernels that Triton compiled for a GPU, through the interpreter of PTX.

A launch may touch the memory that torch's allocator held when it was queued: what a program has
freed by then is a fault, even if nothing else uses it yet. A replayed launch may touch what was
held at its capture in the graph's own pool, and what is held at the replay.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from cuda_host.emulated_runtime import LIBRARY, Execute, NewTicket, add_fault
from ptx.launch import run
from ptx.memory import Memory
from ptx.program import Program, read_program
from triton import knobs

_BITS = {"b8": 8, "b16": 16, "b32": 32, "b64": 64} | {
    f"{sign}{bits}": bits for sign in "su" for bits in (8, 16, 32, 64)
}
"""The sizes of parameters by their types in PTX. No kernel here has a floating-point parameter."""


@dataclass(frozen=True)
class Region:
    """Memory of a device that torch's allocator holds."""

    device: int
    start: int
    size: int
    is_of_graph: bool  # in the pool of a graph


@dataclass(frozen=True)
class Loaded:
    """A kernel that Triton has loaded."""

    program: Program
    shared_bytes: int


_loaded: list[Loaded] = []
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
    paths = {Path(file).suffix: Path(path) for file, path in metadata_group.items()}
    shared_bytes = json.loads(paths[".json"].read_text())["shared"]
    program = read_program(paths[".ptx"].read_text())
    _loaded.append(Loaded(program, shared_bytes))
    sizes = [_BITS[kind] // 8 for kind in program.parameters.values()]
    LIBRARY.emulated_register(
        ctypes.c_long(len(_loaded) - 1),
        name.encode(),
        (ctypes.c_int * len(sizes))(*sizes),
        len(sizes),
    )


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
    number: int,
    grid: int,
    arguments: Any,
    num_arguments: int,
    device: int,
    ticket: int,
    replay: int,
) -> None:
    try:
        kernel = _loaded[number]
        memory = _memory(device, ticket, replay)
        values = _signed(kernel.program, arguments[:num_arguments])
        run(kernel.program, grid, values, memory, kernel.shared_bytes, seed=ticket)
    except Exception as error:  # it cannot pass through C++
        add_fault(f"{type(error).__name__}: {error}")


def _memory(device: int, ticket: int, replay: int) -> Memory:
    """Return the memory that a launch may touch."""
    regions = _tickets[ticket]
    if replay:
        regions = [each for each in regions if each.is_of_graph] + _tickets[replay]
    memory = Memory()
    for region in regions:
        if region.device == device:
            memory.allow(region.start, region.size, "memory of the device")
    return memory


def _signed(program: Program, arguments: Sequence[int]) -> list[int]:
    """Return arguments as the kernel's types read their bits."""
    values = []
    for kind, value in zip(program.parameters.values(), arguments, strict=True):
        is_negative = kind[0] == "s" and value >> (_BITS[kind] - 1)
        values.append(value - (1 << _BITS[kind]) if is_negative else value)
    return values
