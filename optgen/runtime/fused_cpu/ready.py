"""Calls of kernels that are checked and laid out, and wait to be made."""

from collections.abc import Callable, Iterable

from torch.autograd.graph import increment_version

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.sparse_rows import gather_rows
from optgen.runtime.fused_cpu import sparse_gradients
from optgen.runtime.fused_cpu.build import dtype_variants
from optgen.runtime.fused_cpu.chunks import Chunk, check_copies, chunks
from optgen.runtime.fused_cpu.fill_table import Copied, fill_table
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.fused_cpu.kernels import loaded
from optgen.runtime.fused_cpu.table import Table
from optgen.runtime.protocols import Lowered

Ready = Callable[[], bool]
"""Updates what it was made for; tells whether the reader could do so the next time."""


def dense_ready(kernel: Kernel, optimizer: Lowered, batches: list[Batch]) -> Ready:
    """Get ready to update works of dense gradients, of whole parameters."""
    return ready(kernel, optimizer, batches, chunks(kernel, batches))


def ready(
    kernel: Kernel, optimizer: Lowered, batches: list[Batch], parts: Iterable[Chunk]
) -> Ready:
    """Get ready to update works part by part, where they lie if that can be."""
    calls = [_chunk_ready(kernel, optimizer, part) for part in parts]

    def update() -> bool:
        copied = [call() for call in calls]
        for batch in batches:
            increment_version(batch.params)
        return not any(copied)

    return update


def _chunk_ready(kernel: Kernel, optimizer: Lowered, part: Chunk) -> Ready:
    """Get ready for one call; copies are made when it comes, so that few are there at once."""
    scaled = getattr(optimizer, "grad_scale", None) is not None
    if part.copies:
        check_copies(kernel, part.batches)
        types = dtype_variants.of_works(optimizer.rule, part.batches)
        able = loaded(optimizer, types, kernel.is_sharded) if types & ~kernel.types else kernel
        return lambda: _run(able, optimizer, *fill_table(able, part.batches, scaled, copies=True))
    table, copied = fill_table(kernel, part.batches, scaled)
    able = _able(kernel, table, optimizer)
    return lambda: _run(able, optimizer, table, copied)


def _run(kernel: Kernel, optimizer: Lowered, table: Table, copied: Copied) -> bool:
    """Update the tensors of a table; return whether there are copies, which end here."""
    kernel.run(table, optimizer)
    for original, copy in copied:
        original.copy_(copy)
    return table.has_copies


def _able(kernel: Kernel, table: Table, optimizer: Lowered) -> Kernel:
    """The kernel, or one that knows more if a tensor is of a type that it does not know."""
    types = dtype_variants.of_table(table.types, kernel.streams)
    return loaded(optimizer, types, kernel.is_sharded) if types & ~kernel.types else kernel


def rows_ready(kernel: Kernel, optimizer: Lowered, batches: list[Batch]) -> Ready:
    """Get ready to update works of which some have sparse gradients."""
    sparse = [batch for batch in batches if batch.dispatch_key.sparse_grad]
    update = sparse_gradients.function(kernel)
    suited = [batch for batch in sparse if update and sparse_gradients.fits(batch)]
    in_place = (
        sparse_gradients.ready(kernel, update, optimizer, suited) if update and suited else None
    )
    taken = [gather_rows(optimizer.rule, batch) for batch in sparse if batch not in suited]
    dense = [
        *(batch for batch in batches if not batch.dispatch_key.sparse_grad),
        *(each.rows for each in taken),
    ]
    others = dense_ready(kernel, optimizer, dense) if dense else None

    def run() -> bool:
        if in_place:
            in_place()  # first: it may find that an index is no row
        if others:
            others()
        for each in taken:
            each.scatter_rows()
        return not dense

    return run
