"""Torch operations as data: what a sweep becomes before it is printed for one tensor or a list."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from optgen.ir.nodes import Expr, refs
from optgen.passes.scalar_arithmetic import ONE

Operand: TypeAlias = str | Expr
"""A tensor's variable, or a scalar expression."""


@dataclass(frozen=True)
class Op:
    """`target = source.word(args, scalar)`; in place where target is source."""

    word: str
    target: str
    source: Operand
    args: tuple[Operand, ...] = ()
    scalar: Expr = ONE
    inplace: bool = False


@dataclass(frozen=True)
class Alias:
    """`target = source`: another name for the same tensors."""

    target: str
    source: str


@dataclass(frozen=True)
class Reduce:
    """`source.word()` joins what `target` holds of the blocks before; `squared`: of its squares."""

    word: str
    target: str
    source: str
    squared: bool


Step: TypeAlias = Op | Alias | Reduce


@dataclass(frozen=True)
class Ops:
    """What one statement of the plan became, under the spec's words for it."""

    quote: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Branch:
    """An if whose condition has one answer for the whole bucket."""

    condition: Expr
    then: tuple[Instruction, ...]
    orelse: tuple[Instruction, ...]


Instruction: TypeAlias = Ops | Branch


def new_tensors(program: tuple[Instruction, ...]) -> Iterator[str]:
    """The names of new tensors; a name keeps its tensor until it gets another one."""
    for instruction in program:
        if isinstance(instruction, Branch):
            yield from new_tensors((*instruction.then, *instruction.orelse))
        else:
            yield from (s.target for s in instruction.steps if isinstance(s, Op) and not s.inplace)


def numbers_read(program: tuple[Instruction, ...]) -> Iterator[str]:
    """The names that its scalar expressions and conditions read."""
    for instruction in program:
        if isinstance(instruction, Branch):
            yield from (ref.name for ref in refs(instruction.condition))
            yield from numbers_read((*instruction.then, *instruction.orelse))
            continue
        for op in (step for step in instruction.steps if isinstance(step, Op)):
            numbers = (o for o in (op.source, *op.args, op.scalar) if not isinstance(o, str))
            yield from (ref.name for number in numbers for ref in refs(number))


def live_tensors(program: tuple[Instruction, ...], known: Collection[str]) -> list[str]:
    """The names that hold new tensors at the end and surely exist then, as those `known` do."""
    always = tuple(instruction for instruction in program if isinstance(instruction, Ops))
    others = [s.target for ops in always for s in ops.steps if isinstance(s, Alias)]
    sure = {*known, *new_tensors(always), *others}
    return [name for name in dict.fromkeys((*new_tensors(program), *others)) if name in sure]
