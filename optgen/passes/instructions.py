"""Torch operations as data: what a sweep becomes before it is printed for one tensor or a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from optgen.ir.nodes import Expr
from optgen.passes.scalars import ONE

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
