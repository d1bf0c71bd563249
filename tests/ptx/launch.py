"""Run a launch of a kernel: block after block, in an order that a seed draws.

A launch ends with a search for accesses that nothing orders (`accesses.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ptx.accesses import AccessLog
from ptx.block_order import BlockOrder
from ptx.faults import Fault
from ptx.memory import Memory
from ptx.program import Program
from ptx.table import decode
from ptx.wave import LaunchState, Step, Wave

MAX_LANES = 4096
"""Threads that one wave has at most, unless a block has more."""

MAX_STEPS = 10**6
"""Instructions that a wave executes at most: a kernel that never ends is a fault."""


class Counts(NamedTuple):
    """Counts of what a launch has done."""

    instructions: int  # executed, by each wave of blocks once
    executed: frozenset[int]  # indices of the instructions that some block has executed


def run(
    program: Program,
    num_blocks: int,
    arguments: Sequence[int | float],
    memory: Memory,
    shared_bytes: int = 0,
    seed: int = 0,
) -> Counts:
    """Run a kernel on a grid of one dimension.

    Args:
        program: The kernel.
        num_blocks: The size of the grid.
        arguments: Addresses and numbers, in the order of the kernel's parameters.
        memory: The ranges that the kernel may access.
        shared_bytes: The size of a block's shared memory.
        seed: Draws the order of the blocks, and which run together.

    Raises:
        Fault: The kernel does what no kernel may do. The message names the instruction.
        Unsupported: The interpreter does not know an instruction.
    """
    if len(arguments) != len(program.parameters):
        raise ValueError(f"{program.name} takes {len(program.parameters)} arguments")
    steps, sizes = decode(program)
    for name, table in program.constants.items():
        memory.allow(table.ctypes.data, len(table), name)
    logs = AccessLog(program.threads), AccessLog(program.threads)
    launch = LaunchState(arguments, memory, *logs, BlockOrder(num_blocks))
    rng = np.random.default_rng(seed)
    blocks = rng.permutation(num_blocks)
    most_together = max(1, MAX_LANES // program.threads)
    start, executed = 0, Counter[int]()
    with np.errstate(all="ignore"):
        while start < num_blocks:
            end = start + int(rng.integers(1, most_together + 1))
            pending = [
                Wave(
                    launch,
                    blocks[start:end],
                    program.threads,
                    sizes,
                    shared_bytes,
                    program.local_size,
                )
            ]
            start = end
            while pending:
                wave = pending.pop(int(rng.integers(len(pending))))
                _run_wave(program, steps, wave, executed)
                pending += wave.split_off
        _check_order(program, launch, shared_bytes)
    return Counts(executed.total(), frozenset(executed))


def _check_order(program: Program, launch: LaunchState, shared_bytes: int) -> None:
    """Check that barriers and atomics order all accesses of a launch that need an order.

    Raises:
        Fault: Two accesses race.
    """
    pitch = -(-shared_bytes // 16) * 16  # of the blocks' shared memory
    names = (
        (launch.global_log, launch.memory.name_of),
        (launch.shared_log, lambda place: f"byte {place % pitch} of shared memory"),
    )
    for log, name_of in names:
        try:
            log.check(launch.order, lambda index: _described(program, index), name_of)
        except Fault as fault:
            raise Fault(f"{program.name}: {fault}") from None


def _run_wave(program: Program, steps: Sequence[Step], wave: Wave, executed: Counter[int]) -> None:
    """Execute instructions until the blocks of the wave return, and count them."""
    end, positions = len(steps), []
    try:
        while True:
            while wave.divisions and wave.position == wave.divisions[-1].meeting:
                wave.rejoin()
            if wave.position >= end:
                break
            step = steps[wave.position]
            positions.append(wave.position)
            wave.position += 1
            step(wave)
            if len(positions) > MAX_STEPS:
                raise Fault(f"no end after {MAX_STEPS} instructions")
    except Fault as fault:
        where = _described(program, positions[-1])
        blocks = f"block {wave.blocks[0]}" if len(wave.blocks) == 1 else f"blocks {wave.blocks}"
        raise Fault(f"{program.name}, {blocks}: {where}: {fault}") from None
    finally:
        executed.update(positions)


def _described(program: Program, index: int) -> str:
    instruction = program.instructions[index]
    return f"{instruction.text} ({instruction.source})"
