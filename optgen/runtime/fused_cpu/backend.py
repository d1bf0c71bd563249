"""Update batches through compiled C++ kernels: one call updates all tensors of all groups.

A step is taken in one of three ways, each in a file:

* `first_step.py`: the first step of ordinary tensors. Python creates the states, and the C++ reader
  finds all tensors.
* `gathered_step.py`: any step. It takes its tensors from batches, which Python has gathered.
* `cached_step.py`: a step after one of these. The C++ reader fetches every address anew, and Python
  reads groups but no tensor.
"""

from collections.abc import Callable, Sequence, Set
from operator import attrgetter

import torch

from optgen.runtime.batch.batch import Batch, codes_obstacle, has_pieces
from optgen.runtime.batch.grad_scaler import is_skipped
from optgen.runtime.batch.step_context import CachedStep, OptimizerWithContext
from optgen.runtime.fused_cpu import sparse_gradients
from optgen.runtime.fused_cpu.cached_step import CachedCall, CachedDenseStep, updated_group_ids
from optgen.runtime.fused_cpu.first_step import build_for_all, first_batches, take_first_step
from optgen.runtime.fused_cpu.gathered_step import (
    prepare_chunks,
    prepare_dense,
    prepare_sparse,
    single_chunk,
    wide_update,
)
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.fused_cpu.kernel_loader import kernel_or_reason, load_kernel
from optgen.runtime.fused_cpu.sparse_gradients import CachedSparseStep
from optgen.runtime.rule import HasLowerings
from optgen.runtime.sharded.consensus import Consensus
from optgen.runtime.sharded.driver import Update
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.toolchain import dtype_variants
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES

_dtype, _is_cpu = attrgetter("dtype"), attrgetter("is_cpu")


class FusedCpuBackend:
    """Backend for CPU tensors that calls compiled kernels."""

    zeroes_gradients = True

    def build_or_reason(self, lowered: HasLowerings, batch: Batch) -> str:
        """Build the kernel for a batch; return a short reason why none can take it, or ""."""
        key = batch.dispatch_key
        # A kernel that reads no codes gets numbers in copies, a few parameters at a time.
        takes_few = key.sharding is None and not (key.sparse_grad or lowered.rule.wide)
        gets_numbers = takes_few and lowered.rule.why_codes_are_not_read("fused_cpu")
        if not gets_numbers and (reason := codes_obstacle(lowered.rule, batch, "fused_cpu")):
            return reason
        if class_name := batch.overriding_class:
            return f"a state of class {class_name}"
        if batch.dispatch_key.device != "cpu":
            return f"the tensors are on {batch.dispatch_key.device}"
        plain_tensors = (each for each in batch.tensors() if type(each) is not QuantizedTensor)
        real_dtypes = {dtype.to_real() for dtype in set(map(_dtype, plain_tensors))}
        dtype_bits = dtype_variants.bits_of_batches(lowered.rule, [batch])
        is_sharded = batch.dispatch_key.sharding is not None
        if is_sharded and lowered.rule.draws:
            return "random numbers of sharded parameters"
        kernel = kernel_or_reason(lowered, dtype_bits, suspends=is_sharded or lowered.rule.wide)
        if isinstance(kernel, str):
            return kernel
        if is_sharded and batch.dispatch_key.sparse_grad:
            return "sparse gradients of sharded parameters"
        if not all(map(_is_cpu, batch.tensors())):
            return "states or gradients are on another device"
        unknown_dtypes = real_dtypes - set(DTYPE_CODES)
        return f"no kernel for {min(map(str, unknown_dtypes))}" if unknown_dtypes else ""

    def build_function_or_reason(
        self, function: HasLowerings, device: torch.device, dtypes: Set[torch.dtype]
    ) -> str:
        """Build the kernel of a function over lists; return why none can run it, "" if it can."""
        if device.type != "cpu":
            return f"the tensors are on {device.type}"
        kernel = kernel_or_reason(function, dtype_variants.bits_of_dtypes(dtypes))
        return kernel if isinstance(kernel, str) else ""

    def prepare(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch], consensus: Consensus | None
    ) -> Callable[[], CachedStep | None]:
        """Check batches and fill their tables; return a function that updates the batches."""
        sharded_batches = [batch for batch in batches if batch.dispatch_key.sharding]
        whole_batches = [batch for batch in batches if not batch.dispatch_key.sharding]
        calls = []
        if any(batch.dispatch_key.sparse_grad for batch in whole_batches):
            calls.append(prepare_sparse(load_kernel(optimizer), optimizer, whole_batches))
        elif whole_batches:
            calls.append(prepare_dense(load_kernel(optimizer), optimizer, whole_batches))
        if sharded_batches:
            kernel = load_kernel(optimizer, suspends=True)
            chunk = single_chunk(kernel, sharded_batches)
            calls.append(prepare_chunks(kernel, optimizer, sharded_batches, [chunk]))

        def update() -> CachedStep | None:
            if is_skipped(optimizer):
                return None
            can_repeat = [call() for call in calls]  # all calls must run
            if sharded_batches or not whole_batches or not all(can_repeat):
                return None
            return self.cached_step(optimizer, whole_batches)

        return update

    def wide_updates(
        self, optimizer: OptimizerWithContext, batch: Batch, consensus: Consensus | None
    ) -> tuple[Update]:
        """Return the update of a batch, for a rule that reduces over several parameters."""
        return (wide_update(load_kernel(optimizer, suspends=True), optimizer, batch),)

    def begin(
        self, optimizer: OptimizerWithContext, choose: Callable[[Batch], str]
    ) -> CachedStep | None:
        """Take the first step of ordinary tensors if that is possible; return the cached step.

        `choose` chooses the lowering of a batch, and builds its kernel. If the step turns out to be
        impossible, it may still have created the states of the tensors.
        """
        batches = first_batches(optimizer)
        if not batches or not build_for_all(optimizer, batches, choose):
            return None
        return take_first_step(_unsharded_kernel(optimizer), optimizer, batches)

    def cached_step(
        self, optimizer: OptimizerWithContext, batches: Sequence[Batch]
    ) -> CachedStep | None:
        """Return the cached step that repeats an update of batches.

        Return None if the next step must gather its tensors.
        """
        if any(batch.view_copies for batch in batches) or has_pieces(optimizer):
            return None
        kernel, group_ids = _unsharded_kernel(optimizer), updated_group_ids(optimizer, batches)
        if kernel.suspends and single_chunk(kernel, batches).needs_copies:
            return None
        if not any(batch.dispatch_key.sparse_grad for batch in batches):
            cached = CachedDenseStep.of(kernel, optimizer, group_ids)
            has_codes = any(batch.has_codes for batch in batches)
            return None if cached and has_codes and not cached.expect_codes(optimizer) else cached
        rows_function = sparse_gradients.kernel_function(kernel)
        groups = optimizer.param_groups
        all_sparse = all(batch.dispatch_key.sparse_grad for batch in batches)
        if not rows_function or not all_sparse or group_ids != set(map(id, groups)):
            return None
        return CachedSparseStep.of(kernel, rows_function, groups)

    def call(self, function: HasLowerings, batch: Batch) -> CachedCall | None:
        """Run an elementwise function; return a cached call, or None if it cannot be repeated."""
        kernel = load_kernel(function)
        can_repeat = prepare_dense(kernel, function, [batch])()
        return CachedCall.of(kernel, len(batch.params)) if can_repeat else None


def _unsharded_kernel(optimizer: HasLowerings) -> Kernel:
    """Return the kernel for parameters that are not sharded."""
    return load_kernel(optimizer, suspends=optimizer.rule.wide)


def backend(lowering: str) -> FusedCpuBackend:
    """Return the backend; every module of a backend has this function."""
    return FusedCpuBackend()
