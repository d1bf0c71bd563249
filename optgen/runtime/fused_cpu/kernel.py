"""A compiled rule, and the calls that take a table of tensors through it."""

import ctypes
from ctypes import c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.fused_cpu import sweeps, threads
from optgen.runtime.fused_cpu.calls import Call, calls_of
from optgen.runtime.fused_cpu.table import Table, in_stream, shaped_and_scalar
from optgen.runtime.numbers import Numbers
from optgen.runtime.rule import Lowered


class Kernel:
    """A compiled rule: its library, and the streams it takes in the order of the table.

    Of tensors it knows the types that have a bit (levels.py), of single numbers any.
    """

    in_parts = False  # whether it is for parameters that other processes have the rest of

    def __init__(
        self, owner: Lowered, library: Path, types: int, source: str, swept_by: Path | None
    ) -> None:
        self.rule, self.types, self.source = owner.rule, types, source
        self.row = Numbers(owner).row
        self.like, self.scalar = shaped_and_scalar(owner.rule)
        self._library = ctypes.CDLL(str(library))
        if swept_by:
            sweeps.connect(self._library, swept_by)
        self.asks_shapes = self._fact("optgen_shapes")
        self.by_matrix = self._fact("optgen_by_matrix")
        self.calls = calls_of(self._text("optgen_calls"))
        self.locals = tuple(self._text("optgen_locals").split())
        self.streams = 2 + len(self.like) + len(self.locals)
        # The parameter and its gradient stand first, and in no state; locals in none either.
        unnamed = ("",) * len(self.locals)
        self.keys = ("", "", *(s.key for s in self.like), *unnamed, *self.scalar)
        names = ["optgen_step", *(f"optgen_step_{part}" for part in range(2, len(self.calls) + 2))]
        # None: nothing is to be done between two matrix words.
        self.parts = [self._function(name) if self._fact(name) else None for name in names]

    def _fact(self, name: str) -> bool:
        return hasattr(self._library, name)

    def _text(self, name: str) -> str:
        """A text of the library; nothing if it has none of that name."""
        if not self._fact(name):
            return ""
        return (ctypes.c_char_p.in_dll(self._library, name).value or b"").decode()

    def _function(self, name: str) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = (c_void_p, c_void_p), None
        return function

    def needed(self, group: dict[str, Any], param: Tensor | None = None) -> int:
        """The streams that the tensors of a group must have: four set bits each.

        With a parameter, what those of its shape must have.
        """
        states = self.rule.states
        present = {s.key for s in states if s.present(group) and (param is None or s.suits(param))}
        present |= {self.keys[0], *self.scalar}
        local = range(2 + len(self.like), self.streams)
        return sum(
            in_stream(15, i) for i, key in enumerate(self.keys) if key in present and i not in local
        )

    def needed_by_shape(self, group: dict[str, Any]) -> tuple[int, int]:
        """The same, for a vector and for a parameter of more dimensions."""
        vector = torch.empty(0, device="cpu")
        return self.needed(group, vector), self.needed(group, vector[None])

    def run(self, table: Table, optimizer: Lowered) -> None:
        """Update all tensors of a table. The interpreter's lock is released in the parts."""
        table.set_scale(optimizer)
        for position, part in enumerate(self.parts):
            if position:
                self._call(self.calls[position - 1], table)
                table.struct.grad_scale = None  # the first part has unscaled the gradients
            if part is not None:
                part(ctypes.addressof(table.struct), ctypes.addressof(threads.current()))

    def _call(self, call: Call, table: Table) -> None:
        """Do a matrix word, for all tensors of a group at once; other tensors are left out."""
        source, target = self.streams_of(call)
        for index, (work, columns) in enumerate(zip(table.works, table.held, strict=True)):
            suited = call.suited(columns[0])
            made = call(work.group, [columns[source][place] for place in suited])
            table.put_made(target, index, dict(zip(suited, made, strict=True)), source)

    def streams_of(self, call: Call) -> tuple[int, int]:
        """Where in the table stands what a matrix word takes, and what it makes."""
        first = 2 + len(self.like)
        return first + self.locals.index(call.source), first + self.locals.index(call.target)
