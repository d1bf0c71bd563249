"""Load the compiled kernels of a rule; build missing kernels."""

import pkgutil
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from optgen.runtime.fused_cpu import sparse_gradients
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.reader import tensor_reader
from optgen.runtime.reader.streams import shaped_states_and_scalar_keys
from optgen.runtime.rule import HasLowerings, Rule
from optgen.runtime.toolchain import compiler, dtype_variants, library_cache
from optgen.runtime.toolchain.compiler import end_all_compilers
from optgen.runtime.toolchain.library_cache import inline_includes

# By module: the kernels, or the reasons why there are none. The keys of the inner dictionary are:
# whether steps suspend, and the bits of the dtypes that the kernel was asked for.
_kernels: WeakKeyDictionary[ModuleType, dict[tuple[bool, int], Kernel | str]] = WeakKeyDictionary()
_warned_reasons: set[str] = set()  # why builds failed, as the user was told


def load_kernel(lowered: HasLowerings, dtype_bits: int = 0, suspends: bool = False) -> Kernel:
    """Return a kernel for these dtypes; raise a `RuntimeError` if there is none."""
    kernel = kernel_or_reason(lowered, dtype_bits, suspends)
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    return kernel


def kernel_or_reason(
    lowered: HasLowerings, dtype_bits: int = 0, suspends: bool = False
) -> Kernel | str:
    """Return a kernel that knows these dtypes, or the reason why there is none.

    A new kernel also knows all dtypes of the current step and of earlier kernels.
    """
    module = sys.modules[lowered.lowerings]
    loaded = _kernels.setdefault(module, {})
    kernels = [each for each in loaded.values() if isinstance(each, Kernel)]
    earlier_kernels = [kernel for kernel in kernels if kernel.suspends == suspends]
    for kernel in reversed(earlier_kernels):  # each knows the dtypes of all earlier ones
        if not dtype_bits & ~kernel.dtype_bits:
            return kernel
    for more_bits in (
        _dtype_bits_of_step(lowered),
        *(kernel.dtype_bits for kernel in earlier_kernels),
    ):
        dtype_bits |= more_bits
    key = suspends, dtype_bits
    if key not in loaded:
        loaded[key] = _load(lowered, module, *key)
    return loaded[key]


def _dtype_bits_of_step(lowered: HasLowerings) -> int:
    """Return the bits of all dtypes of the current step, so that one library serves the step."""
    context = getattr(lowered, "_context", None)
    batches = [batch for batch in context.batches.values() if not batch.parts] if context else []
    return dtype_variants.bits_of_batches(lowered.rule, batches)


def _load(
    lowered: HasLowerings, module: ModuleType, suspends: bool, dtype_bits: int
) -> Kernel | str:
    """Return a kernel, or the reason why there is none; warn once about a failed build."""
    if reason := why_too_many_states(lowered.rule):
        return reason
    try:
        return _build(lowered, module, suspends, dtype_bits)
    except (library_cache.NoCompilerError, compiler.CompileError, OSError) as error:
        message = str(error)
    reason = message.partition("\n")[0]  # the compiler's output follows
    if reason not in _warned_reasons:
        _warned_reasons.add(reason)
        warnings.warn(f"optimizer steps on CPU tensors will be slow: {message}", stacklevel=2)
    return reason


def _build(lowered: HasLowerings, module: ModuleType, suspends: bool, dtype_bits: int) -> Kernel:
    """Build the libraries of a kernel in two threads, and load the kernel."""
    for folder in module.__path__:
        library_cache.look_in(Path(folder).parent / "kernels")
    kernel_class, define = _kernel_class_and_define(suspends)
    name, source = lowered.rule.name, define + inline_includes(_source(module))
    extra_bits = dtype_variants.matrix_op_dtypes(c.options for c in lowered.rule.matrix_calls)
    # Two compilers at once take no longer than one. On two cores, a third one would have to wait.
    with ThreadPoolExecutor(1) as executor:
        try:
            wait_for_sweeps = dtype_variants.start_sweep_build(
                executor, source, dtype_bits, extra_bits
            )
            if lowered.rule.gradient == "sparse_only":
                executor.submit(sparse_gradients.library, name, source)
            if not tensor_reader.is_built():
                executor.submit(tensor_reader.reader)  # the next step uses it
            path, known_dtype_bits = dtype_variants.library(name, source, dtype_bits, extra_bits)
            return kernel_class(lowered, path, known_dtype_bits, source, wait_for_sweeps())
        except KeyboardInterrupt:
            end_all_compilers()  # the other thread would wait for its compiler
            raise


def library_sources(
    lowered: HasLowerings, dtype_bits: int, suspends: bool
) -> Iterator[tuple[str, str]]:
    """Yield the name and the source of each library that steps of these dtypes load."""
    _, define = _kernel_class_and_define(suspends)
    rule, source = lowered.rule, define + inline_includes(_source(sys.modules[lowered.lowerings]))
    extra_bits = dtype_variants.matrix_op_dtypes(c.options for c in rule.matrix_calls)
    yield rule.name, dtype_variants.source_for(source, dtype_bits, extra_bits)
    if sweeps := dtype_variants.sweeps_for(source):
        yield dtype_variants.SWEEPS, dtype_variants.source_for(sweeps, dtype_bits, extra_bits)
    if rule.gradient == "sparse_only":
        yield sparse_gradients.library_source(rule.name, source)
    yield tensor_reader.library_source()


def _source(module: ModuleType) -> str:
    return (pkgutil.get_data(module.__name__, "fused_cpu.cpp") or b"").decode()


def _kernel_class_and_define(suspends: bool) -> tuple[type[Kernel], str]:
    """Return the class of a kernel, and the define that its source begins with."""
    if not suspends:
        return Kernel, ""
    from optgen.runtime.fused_cpu.suspending_kernel import MACRO, SuspendingKernel

    return SuspendingKernel, f"#define {MACRO}\n"


# A 64-bit integer has four bits for each of 16 streams: parameter, gradient and 14 states.
_MAX_STATES = 14
# A byte has a bit for each state that the rule calls `fresh` on.
_MAX_FRESH = 8


def why_too_many_states(rule: Rule) -> str:
    """Return a short reason why a rule does not fit into a row of the table; "" if it fits.

    Operands and results of matrix ops are streams too.
    """
    if len(rule.fresh) > _MAX_FRESH:
        return f"the rule calls `fresh` on more than {_MAX_FRESH} states"
    shaped_states, scalar_keys = shaped_states_and_scalar_keys(rule)
    state_count = len(shaped_states) + len(scalar_keys)
    if state_count > _MAX_STATES:
        return f"more than {_MAX_STATES} states"
    if state_count + len(rule.matrices) > _MAX_STATES:
        return f"more than {_MAX_STATES} states and matrices"
    return ""
