"""The compiled kernels of a rule: which there are, and the build of those that are missing."""

import pkgutil
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from weakref import WeakKeyDictionary

from optgen.runtime.fused_cpu import sparse_gradients
from optgen.runtime.fused_cpu.kernel.kernel import Kernel
from optgen.runtime.fused_cpu.kernel.stream_codes import excess
from optgen.runtime.fused_cpu.reader import tensor_reader
from optgen.runtime.fused_cpu.toolchain import (
    compiler,
    dtype_variants,
    library_cache,
    sweep_library,
)
from optgen.runtime.fused_cpu.toolchain.compiler_process import end_all
from optgen.runtime.fused_cpu.toolchain.source import complete
from optgen.runtime.protocols import Lowered

# By whether it is for sharded parameters, and the dtypes it was asked for.
_kernels: WeakKeyDictionary[ModuleType, dict[tuple[bool, int], Kernel | str]] = WeakKeyDictionary()
_warned: set[str] = set()  # the reasons why kernels could not be built


def loaded(owner: Lowered, types: int = 0, is_sharded: bool = False) -> Kernel:
    """The kernel, or an error that says why there is none."""
    kernel = kernel_or_reason(owner, types, is_sharded)
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    return kernel


def kernel_or_reason(owner: Lowered, types: int = 0, is_sharded: bool = False) -> Kernel | str:
    """A kernel that knows these types, the one that knows most; or why there is none."""
    module = sys.modules[owner.lowerings]
    loaded = _kernels.setdefault(module, {})
    kernels = [each for each in loaded.values() if isinstance(each, Kernel)]
    alike = [kernel for kernel in kernels if kernel.is_sharded == is_sharded]
    for kernel in reversed(alike):  # each knows what those before it do
        if not types & ~kernel.types:
            return kernel
    for known in (_types_of_step(owner), *(kernel.types for kernel in alike)):
        types |= known
    asked = is_sharded, types
    if asked not in loaded:
        loaded[asked] = _load(owner, module, *asked)
    return loaded[asked]


def _types_of_step(owner: Lowered) -> int:
    """The types of all tensors of the step at hand: one library is to take all its works."""
    context = getattr(owner, "_context", None)
    batches = [batch for batch in context.batches.values() if not batch.parts] if context else []
    return dtype_variants.of_works(owner.rule, batches)


def _load(owner: Lowered, module: ModuleType, is_sharded: bool, types: int) -> Kernel | str:
    if reason := excess(owner.rule, _source(module)):
        return reason
    try:
        return _built(owner, module, is_sharded, types)
    except (library_cache.NoCompilerError, compiler.CompileError, OSError) as error:
        message = str(error)
    reason = message.partition("\n")[0]  # what follows are words of the compiler
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"optimizer steps on CPU tensors will be slow: {message}", stacklevel=2)
    return reason


def _built(owner: Lowered, module: ModuleType, is_sharded: bool, types: int) -> Kernel:
    kind, condition = _kind(is_sharded)
    name, source = owner.rule.name, condition + complete(_source(module))
    # Two compilers take no longer than one; a third would wait for them where there are two cores.
    with ThreadPoolExecutor(1) as beside:
        try:
            swept = sweep_library.begun(beside, source, types)
            if owner.rule.gradient == "sparse_only":
                beside.submit(sparse_gradients.library, name, source)
            if not tensor_reader.is_built():
                beside.submit(tensor_reader.reader)  # it is asked for next
            built = dtype_variants.library(name, source, types, dtype_variants.made(source))
            return kind(owner, *built, source, swept())
        except KeyboardInterrupt:
            end_all()  # the other thread would wait for its compiler
            raise


def _source(module: ModuleType) -> str:
    return (pkgutil.get_data(module.__name__, "fused_cpu.cpp") or b"").decode()


def _kind(is_sharded: bool) -> tuple[type[Kernel], str]:
    """The class of a kernel, and what its source begins with."""
    if not is_sharded:
        return Kernel, ""
    from optgen.runtime.fused_cpu.kernel.shard_kernel import CONDITION, ShardKernel

    return ShardKernel, f"#define {CONDITION}\n"
