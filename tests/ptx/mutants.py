"""Change one instruction of a kernel, and see whether the interpreter or the results show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ptx.emulate import PreparedLaunch
from ptx.faults import Fault
from ptx.launch import Counts
from ptx.program import Address, Instruction, Program

Mutation = Callable[[Instruction], Instruction | None]
"""Returns a changed instruction; None if the mutation does not apply to it."""


class Outcome(NamedTuple):
    """The fate of a mutant."""

    index: int  # of the changed instruction
    instruction: Instruction  # as it was
    fault: str  # "" if none was found
    changes_results: bool
    is_executed: bool  # whether a block executed the instruction

    @property
    def is_noticed(self) -> bool:
        """Tell whether a test would fail."""
        return bool(self.fault) or self.changes_results


def without_barrier(instruction: Instruction) -> Instruction | None:
    """Remove a barrier of a block or of a warp."""
    is_barrier = instruction.name in ("bar.sync", "bar.warp.sync")
    return _nothing(instruction) if is_barrier else None


def without_wait(instruction: Instruction) -> Instruction | None:
    """Remove a wait for copies to shared memory."""
    return _nothing(instruction) if instruction.name == "cp.async.wait_group" else None


def without_guard(instruction: Instruction) -> Instruction | None:
    """Drop the mask of a load or store."""
    if instruction.guard is None or instruction.name.split(".")[0] not in ("ld", "st", "atom"):
        return None
    return replace(instruction, guard=None)


def shifted(instruction: Instruction) -> Instruction | None:
    """Move the address of a load or store by 64 bytes, which stay aligned."""
    if not instruction.name.startswith(("ld.global", "st.global", "ld.shared", "st.shared")):
        return None
    operands = tuple(
        Address(each.base, each.offset + 64) if isinstance(each, Address) else each
        for each in instruction.operands
    )
    return replace(instruction, operands=operands)


def weakened(instruction: Instruction) -> Instruction | None:
    """Make an atomic addition relaxed: it orders nothing."""
    if "acq_rel" not in instruction.name:
        return None
    return replace(instruction, name=instruction.name.replace("acq_rel", "relaxed"))


def narrowed(instruction: Instruction) -> Instruction | None:
    """Make an atomic addition one of the block only."""
    if not instruction.name.startswith("atom"):
        return None
    return replace(instruction, name=instruction.name.replace("gpu", "cta"))


def _nothing(instruction: Instruction) -> Instruction:
    return replace(instruction, name="branchtargets", operands=(), guard=None)


@dataclass
class MutantsOfKernels:
    """Runs all mutants of some kernels' launches, and then the kernels themselves."""

    mutation: Mutation
    kernels: tuple[str, ...]  # names

    def __post_init__(self) -> None:
        self.outcomes: dict[str, list[Outcome]] = {}

    def run(self, launch: PreparedLaunch) -> Counts:
        """Run a launch; if it is the first of one of the kernels, run its mutants before."""
        program = launch.program
        if program.name not in self.kernels or program.name in self.outcomes:
            return launch.run()
        before = launch.memory.contents()
        counts = launch.run()
        expected = launch.memory.contents()
        self.outcomes[program.name] = [
            self._outcome(launch, mutant, index, before, expected)
            for index, mutant in _mutants(program, self.mutation)
        ]
        launch.memory.restore(expected)
        return counts

    def _outcome(
        self,
        launch: PreparedLaunch,
        mutant: Program,
        index: int,
        before: list[bytes],
        expected: list[bytes],
    ) -> Outcome:
        launch.memory.restore(before)
        instruction, fault, executed = launch.program.instructions[index], "", True
        try:
            counts = replace(launch, program=mutant).run()
            executed = index in counts.executed
        except Fault as error:
            fault = str(error)
        changes = launch.memory.contents() != expected
        return Outcome(index, instruction, fault, changes, executed)


def _mutants(program: Program, mutation: Mutation) -> Iterator[tuple[int, Program]]:
    """Yield the index of a changed instruction, and the program with this change."""
    for index, instruction in enumerate(program.instructions):
        changed = mutation(instruction)
        if changed is not None:
            instructions = list(program.instructions)
            instructions[index] = changed
            yield index, replace(program, instructions=tuple(instructions))
