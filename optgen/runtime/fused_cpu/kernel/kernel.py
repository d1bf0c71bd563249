"""A compiled rule, and the calls that take a table of tensors through it."""

import ctypes
from ctypes import c_void_p
from pathlib import Path
from typing import Any

from optgen.runtime.fused_cpu.kernel import threads
from optgen.runtime.fused_cpu.kernel.matrix_calls import Call
from optgen.runtime.fused_cpu.kernel.signature import KernelSignature
from optgen.runtime.fused_cpu.kernel.table import Table
from optgen.runtime.fused_cpu.toolchain import sweep_library
from optgen.runtime.protocols import Lowered


class Kernel(KernelSignature):
    """A compiled rule: its library, and the streams it takes in the order of the table.

    A kernel knows the dtypes of tensors whose bit is set in `types`, and numbers of any dtype.
    """

    is_sharded = False  # whether it is for parameters that other ranks hold shards of

    def __init__(
        self, owner: Lowered, library: Path, types: int, source: str, swept_by: Path | None
    ) -> None:
        super().__init__(owner, ctypes.CDLL(str(library)))
        self.types, self.source = types, source
        if swept_by:
            sweep_library.connect(self._library, swept_by)
        names = ["optgen_step", *(f"optgen_step_{part}" for part in range(2, len(self.calls) + 2))]
        # None: nothing is to be done between two matrix ops.
        self.parts = [self._function(name) if self._has(name) else None for name in names]

    def _function(self, name: str) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = (c_void_p, c_void_p), None
        return function

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
        for index, (batch, columns) in enumerate(zip(table.batches, table.held, strict=True)):
            suited = call.suited(columns[0])
            made = call(batch.group, [columns[source][place] for place in suited])
            table.put_made(target, index, dict(zip(suited, made, strict=True)), source)

    def streams_of(self, call: Call) -> tuple[int, int]:
        """Where in the table stands what a matrix word takes, and what it makes."""
        first = 2 + len(self.like)
        return first + self.locals.index(call.source), first + self.locals.index(call.target)
