"""Run a compiled rule over a table of tensors."""

import ctypes
from ctypes import c_void_p
from pathlib import Path
from typing import Any

from optgen.runtime.fused_cpu.kernel import threads
from optgen.runtime.fused_cpu.kernel.matrix_calls import MatrixCall
from optgen.runtime.fused_cpu.kernel.signature import KernelSignature
from optgen.runtime.fused_cpu.kernel.table import Table
from optgen.runtime.protocols import HasLowerings
from optgen.runtime.toolchain import dtype_variants


class Kernel(KernelSignature):
    """Compiled rule: its library, and the streams it takes in the order of the table.

    A kernel takes tensors of the dtypes whose bit is set in `dtype_bits`, and scalar states of any
    dtype. `sweep_path` is the path of its sweep library, if it needs one.
    """

    suspends = False  # whether steps wait for other ranks, or for the other parameters

    def __init__(
        self,
        lowered: HasLowerings,
        library: Path,
        dtype_bits: int,
        source: str,
        sweep_path: Path | None,
    ) -> None:
        super().__init__(lowered, ctypes.CDLL(str(library)))
        self.dtype_bits, self.source = dtype_bits, source
        if sweep_path:
            dtype_variants.connect_sweeps(self._library, sweep_path)
        symbols = [
            "optgen_step",
            *(f"optgen_step_{segment}" for segment in range(2, len(self.matrix_calls) + 2)),
        ]
        # A segment is the code between two matrix ops; None stands for an empty segment.
        self.segments = [self._function(name) if self._exports(name) else None for name in symbols]

    def _function(self, name: str) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = (c_void_p, c_void_p), None
        return function

    @property
    def address(self) -> int | None:
        """The address of the code of a kernel without matrix ops."""
        step = self.segments[0]
        assert step is not None  # only a kernel with matrix ops has empty segments
        return ctypes.cast(step, c_void_p).value

    def run(self, table: Table, optimizer: HasLowerings) -> None:
        """Update all tensors of a table; the C++ code runs without the interpreter's lock."""
        table.set_grad_scale(optimizer)
        for position, segment in enumerate(self.segments):
            if position:
                self._call_matrix_op(self.matrix_calls[position - 1], table)
                table.struct.grad_scale = None  # the first segment has unscaled the gradients
            if segment is not None:
                segment(ctypes.addressof(table.struct), ctypes.addressof(threads.current()))

    def _call_matrix_op(self, call: MatrixCall, table: Table) -> None:
        """Apply a matrix op to the tensors that its condition selects, one call per param group."""
        source, target = self.streams_of(call)
        for index, (batch, columns) in enumerate(zip(table.batches, table.columns, strict=True)):
            indices = call.selected_indices(columns[0])
            results = call(batch.group, [columns[source][i] for i in indices])
            table.set_results(target, index, dict(zip(indices, results, strict=True)), source)

    def streams_of(self, call: MatrixCall) -> tuple[int, int]:
        """Return the streams of the table that hold a matrix op's operand and its result."""
        first_local = 2 + len(self.shaped_states)
        source, target = map(self.local_names.index, (call.source, call.target))
        return first_local + source, first_local + target
