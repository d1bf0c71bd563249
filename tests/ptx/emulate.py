"""Run steps of fused Triton on CPU tensors: compiled kernels, on an emulated device.

The project itself makes the launches: its runtime chooses buckets, arguments and options, and
Triton compiles the kernels for sm_90, as for a GPU. Only the launch is another: it runs the
kernel's PTX in the interpreter, on the memory of the tensors.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.backends.nvidia.compiler import CUDABackend

from benchmarks.triton_aot_compile import Launch, compiling_for
from optgen.runtime.fused_triton.backend import FusedTritonBackend
from optgen.runtime.fused_triton.bucket import Bucket
from optgen.runtime.fused_triton.matrix_stacks import Stacks
from optgen.runtime.fused_triton.table import HEADER, Table
from optgen.verification.patch_attribute import patch_attribute
from ptx.launch import Counts, run
from ptx.memory import Memory
from ptx.program import Program, read_program

TARGET = "sm_90"
CACHE = str(Path(__file__).parents[2] / "build" / "ptx")
"""Folder of compiled kernels. It has no machine code, so other tests cannot use it."""


@dataclass(frozen=True)
class PreparedLaunch:
    """A launch with all that it needs to run."""

    program: Program
    num_blocks: int
    arguments: tuple[int | float, ...]
    memory: Memory
    shared_bytes: int
    seed: int

    def run(self) -> Counts:
        """Run the launch.

        Raises:
            Fault: The kernel does what no kernel may do.
        """
        return run(
            self.program,
            self.num_blocks,
            self.arguments,
            self.memory,
            self.shared_bytes,
            self.seed,
        )


class Device:
    """An emulated device.

    Args:
        seed: Draws the order of the blocks of each launch.
        run_launch: Runs a launch, or several changed ones.
    """

    def __init__(
        self,
        seed: int = 0,
        run_launch: Callable[[PreparedLaunch], Counts] = PreparedLaunch.run,
    ) -> None:
        self.launches: Counter[str] = Counter()  # by name of the kernel
        self.instructions = 0  # executed, by each wave of blocks once
        self.kernels: set[str] = set()  # different PTX texts
        self._seed, self._run_launch = seed, run_launch
        self._tables: dict[int, dict[str, Sequence[Tensor]]] = {}  # rows, by address of the table

    def launch(self, launch: Launch) -> None:
        """Run a launch.

        Raises:
            Fault: The kernel does what no kernel may do.
        """
        ptx = launch.compiled.asm["ptx"]
        program = read_program(ptx)
        arguments = _arguments(launch)
        arguments += [0] * (len(program.parameters) - len(arguments))  # Triton's own memory: none
        self._seed += 1
        counts = self._run_launch(
            PreparedLaunch(
                program,
                launch.grid[0],
                tuple(arguments),
                self._memory(_bound(launch)),
                launch.compiled.metadata.shared,
                self._seed,
            )
        )
        self.launches[launch.name] += 1
        self.instructions += counts.instructions
        self.kernels.add(ptx)

    def _memory(self, bound: dict[str, Any]) -> Memory:
        """Return the memory that a launch may touch: its arguments, and tensors of its tables."""
        memory = Memory()
        for name, value in bound.items():
            if isinstance(value, Tensor):
                _allow(memory, value, name)
                for row, tensors in self._tables.get(value.data_ptr(), {}).items():
                    for index, tensor in enumerate(tensors):
                        _allow(memory, tensor, f"{row} of tensor {index}")
        return memory

    def note_addresses(self, table: Table, row: str, tensors: Sequence[Tensor]) -> None:
        """Note the tensors whose addresses a table has."""
        self._tables.setdefault(table.memory.data_ptr(), {})[row] = tensors


def _allow(memory: Memory, tensor: Tensor, name: str) -> None:
    """Allow accesses to a tensor's elements; behind codes of 8 bits, to the blocks' scales too."""
    if not tensor.numel():
        return
    if tensor.dtype == torch.int8:
        size = tensor.untyped_storage().nbytes() - tensor.storage_offset()
    else:
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        size = (sum((size - 1) * stride for size, stride in pairs) + 1) * tensor.itemsize
    memory.allow(tensor.data_ptr(), size, name)


def _bound(launch: Launch) -> dict[str, Any]:
    """Return a launch's arguments by name."""
    signature = inspect.signature(launch.compiled.src.fn.fn)
    named = {name: value for name, value in launch.options.items() if name in signature.parameters}
    bound = signature.bind(*launch.arguments, **named)
    bound.apply_defaults()
    return dict(bound.arguments)


def _arguments(launch: Launch) -> list[int | float]:
    """Return the arguments that Triton's launcher passes: all that are no constants."""
    types = launch.compiled.src.signature
    values = [value for name, value in _bound(launch).items() if types[name] != "constexpr"]
    return [value.data_ptr() if isinstance(value, Tensor) else value for value in values]


@contextmanager
def emulated(device: Device | None = None) -> Iterator[Device]:
    """Let the fused Triton steps of CPU tensors run on an emulated device, and yield it.

    Make the optimizer inside the context.
    """
    device = device or Device()
    write_addresses, set_local = Table.write_addresses, Bucket._set_local

    def note_addresses(table: Table, streams: Sequence[Sequence[Tensor]]) -> None:
        write_addresses(table, streams)
        for index, stream in enumerate(streams):
            device.note_addresses(table, f"row {HEADER + index}", list(stream))

    def note_local(bucket: Bucket, name: str, stacks: Stacks) -> None:
        set_local(bucket, name, stacks)
        matrices = [matrix for batch in stacks for stack in batch for matrix in stack]
        device.note_addresses(bucket._table, f"local {name}", matrices)

    patches = (
        # Repeated steps and calls know addresses and no tensors; `make test-cuda-host` runs them.
        (FusedTritonBackend, "cached_step", lambda *arguments: None),
        (FusedTritonBackend, "_cached_call", lambda *arguments: None),
        (Table, "write_addresses", note_addresses),
        (Bucket, "_set_local", note_local),
        (CUDABackend, "make_cubin", lambda *arguments: b""),  # only the PTX is needed
    )
    with ExitStack() as stack:
        stack.enter_context(compiling_for(TARGET, CACHE, device.launch))
        for owner, name, value in patches:
            stack.enter_context(patch_attribute(owner, name, value))
        yield device
