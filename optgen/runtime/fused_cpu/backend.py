"""The fused C++ backend: one call of a compiled kernel updates all tensors of all groups.

A gathered step takes its tensors from batches. A cached step follows one that went through this
backend: the C++ reader fetches every address anew, and Python touches groups only, no tensor. A
first step of ordinary tensors is read the same way, once Python has created their states.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.context import CachedStep, Stepping
from optgen.runtime.batch.grad_scaler import is_skipped
from optgen.runtime.fused_cpu import first_step, sparse_gradients
from optgen.runtime.fused_cpu.cached_call import CachedCall
from optgen.runtime.fused_cpu.cached_dense_step import CachedDenseStep, whole_groups
from optgen.runtime.fused_cpu.cached_sparse_step import CachedSparseStep
from optgen.runtime.fused_cpu.chunks import together
from optgen.runtime.fused_cpu.kernels import kernel_or_reason, loaded
from optgen.runtime.fused_cpu.ready import dense_ready, ready, rows_ready
from optgen.runtime.fused_cpu.toolchain import dtype_variants
from optgen.runtime.fused_cpu.toolchain.dtype_codes import CODES
from optgen.runtime.protocols import Lowered
from optgen.runtime.sharded.consensus import Consensus

_dtype, _is_cpu = attrgetter("dtype"), attrgetter("is_cpu")


class FusedCpuBackend:
    """Takes batches of CPU tensors through compiled kernels."""

    def obstacle(self, owner: Lowered, batch: Batch) -> str:
        """Say in a few words why no kernel can take this batch; "" if one can."""
        if strange := batch.overriding_class:
            return f"a state of class {strange}"
        if batch.dispatch_key.device != "cpu":
            return f"the tensors are on {batch.dispatch_key.device}"
        dtypes = {dtype.to_real() for dtype in set(map(_dtype, batch.tensors()))}
        types = dtype_variants.of_works(owner.rule, [batch])
        is_sharded = batch.dispatch_key.sharding is not None
        kernel = kernel_or_reason(owner, types, is_sharded)
        if isinstance(kernel, str):
            return kernel
        if is_sharded and batch.dispatch_key.sparse_grad:
            return "sparse gradients of parameters in parts"
        if not all(map(_is_cpu, batch.tensors())):
            return "states or gradients are on another device"
        unknown = dtypes - set(CODES)
        return f"no kernel for {sorted(map(str, unknown))[0]}" if unknown else ""

    def prepare(
        self, optimizer: Stepping, batches: Sequence[Batch], consensus: Consensus | None
    ) -> Callable[[], CachedStep | None]:
        """Check batches, and lay out their tables; return what updates them."""
        sharded = [batch for batch in batches if batch.dispatch_key.sharding]
        whole = [batch for batch in batches if not batch.dispatch_key.sharding]
        calls = []
        if any(batch.dispatch_key.sparse_grad for batch in whole):
            calls.append(rows_ready(loaded(optimizer), optimizer, whole))
        elif whole:
            calls.append(dense_ready(loaded(optimizer), optimizer, whole))
        if sharded:
            kernel = loaded(optimizer, is_sharded=True)
            calls.append(ready(kernel, optimizer, sharded, [together(kernel, sharded)]))

        def update() -> CachedStep | None:
            if is_skipped(optimizer):
                return None
            in_place = [call() for call in calls]
            cacheable = whole and all(in_place) and not sharded
            return _cached(optimizer, whole) if cacheable else None

        return update

    def begin(self, optimizer: Stepping, takes: Callable[[Batch], bool]) -> CachedStep | None:
        """Take the first step of ordinary tensors; or at most create their states."""
        batches = first_step.batches(optimizer, takes)
        return first_step.taken(loaded(optimizer), optimizer, batches) if batches else None

    def call(self, function: Lowered, batch: Batch) -> CachedCall | None:
        """Update the lists of a function; return what does so again, if nothing was copied."""
        kernel = loaded(function)
        in_place = dense_ready(kernel, function, [batch])()
        return CachedCall.of(kernel, len(batch.params)) if in_place else None


def _cached(optimizer: Stepping, batches: Sequence[Batch]) -> CachedStep | None:
    """Return what repeats a step that was taken in place, of dense or of sparse gradients."""
    kernel, stepped = loaded(optimizer), whole_groups(optimizer, batches)
    if not any(batch.dispatch_key.sparse_grad for batch in batches):
        return CachedDenseStep.of(kernel, optimizer, stepped)
    update = sparse_gradients.function(kernel)
    listed = optimizer.param_groups
    every = stepped == set(map(id, listed)) and all(b.dispatch_key.sparse_grad for b in batches)
    return CachedSparseStep.of(kernel, update, listed) if update and every else None


def backend(lowering: str) -> FusedCpuBackend:
    """Return the backend."""
    return FusedCpuBackend()
