"""Instructions: torch operations as data, printed later for one tensor or for a list."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from optgen.ir.nodes import Expr, refs
from optgen.passes.linear_forms import ONE

Operand: TypeAlias = str | Expr
"""Variable of a tensor, or a scalar expression."""


@dataclass(frozen=True)
class Op:
    """Operation `target = source.function(args, scalar)`; with `inplace`, `target` is `source`."""

    function: str
    target: str
    source: Operand
    args: tuple[Operand, ...] = ()
    scalar: Expr = ONE
    inplace: bool = False


@dataclass(frozen=True)
class Alias:
    """Second name for a tensor: `target = source`."""

    target: str
    source: str


@dataclass(frozen=True)
class Reduce:
    """Reduction of one block of a tensor, accumulated into `target`; or of a `whole` tensor.

    If `squared`, the squares of the elements are reduced. A tensor may be a single block.
    """

    function: str
    target: str
    source: str
    squared: bool
    whole: bool = False


Operation: TypeAlias = Op | Alias | Reduce


@dataclass(frozen=True)
class Ops:
    """Operations of one statement of the plan, with the spec's lines for it."""

    quote: tuple[str, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Branch:
    """Branch whose condition is uniform over the bucket."""

    condition: Expr
    then: tuple[Instruction, ...]
    orelse: tuple[Instruction, ...]


Instruction: TypeAlias = Ops | Branch


def new_tensors(program: tuple[Instruction, ...]) -> Iterator[str]:
    """Yield the target of every operation that allocates a tensor."""
    for instruction in program:
        if isinstance(instruction, Branch):
            yield from new_tensors((*instruction.then, *instruction.orelse))
        else:
            yield from (
                s.target for s in instruction.operations if isinstance(s, Op) and not s.inplace
            )


def numbers_read(program: tuple[Instruction, ...]) -> Iterator[str]:
    """Yield the names that scalar expressions and conditions read."""
    for instruction in program:
        if isinstance(instruction, Branch):
            yield from (ref.name for ref in refs(instruction.condition))
            yield from numbers_read((*instruction.then, *instruction.orelse))
            continue
        for op in (operation for operation in instruction.operations if isinstance(operation, Op)):
            numbers = (o for o in (op.source, *op.args, op.scalar) if not isinstance(o, str))
            yield from (ref.name for number in numbers for ref in refs(number))


def live_tensors(program: tuple[Instruction, ...], known: Collection[str]) -> list[str]:
    """Return the names of the allocated tensors that exist at the end of a program on every path.

    `known` are names that exist before the program.
    """
    always = tuple(instruction for instruction in program if isinstance(instruction, Ops))
    aliases = [s.target for ops in always for s in ops.operations if isinstance(s, Alias)]
    defined = {*known, *new_tensors(always), *aliases}
    return [name for name in dict.fromkeys((*new_tensors(program), *aliases)) if name in defined]
