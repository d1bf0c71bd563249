"""Implement `optgen check --compile`, which builds the C++ of rules, as their first step would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import filterfalse

import torch

from optgen import emit
from optgen.cli.locate_specs import spec_path
from optgen.emit import ToolchainError
from optgen.ir.algorithm import Algorithm
from optgen.lowerings import LOWERINGS
from optgen.passes.outline_sweeps import outline_sweeps, with_sweeps
from optgen.runtime.fused_cpu.suspending_kernel import MACRO
from optgen.runtime.toolchain import dtype_variants, library_cache
from optgen.runtime.toolchain.compiler import CompileError
from optgen.runtime.toolchain.library_cache import inline_includes
from optgen.spec.composition.parts import is_modifier
from optgen.spec.read_spec import read_spec

(_FUSED_CPU,) = (lowering for lowering in LOWERINGS if lowering.name == "fused_cpu")


def compile_specs(names: Iterable[str]) -> Iterator[str]:
    """Build the C++ of specs into the cache, and yield a line for each algorithm.

    The line says that the algorithm compiles, or why its steps on the CPU are not fused.

    Raises:
        ToolchainError: there is no compiler, or it failed; the message says why.
    """
    paths = dict.fromkeys(spec_path(name) for name in names)
    for path in filterfalse(is_modifier, paths):
        for algorithm in read_spec(path):
            yield from map(_compile, filter(_FUSED_CPU.applies, with_sweeps(algorithm)))
            if reason := outline_sweeps(algorithm).why_none:
                yield f"{algorithm.name}: no fused step on the CPU: {reason}"


def _compile(algorithm: Algorithm) -> str:
    """Build the C++ of an algorithm, and return a line that says so."""
    try:
        _build_libraries(algorithm)
    except (library_cache.NoCompilerError, CompileError) as error:
        raise ToolchainError(f"{algorithm.name}: {error}") from None
    return f"{algorithm.name}: compiles"


def _build_libraries(algorithm: Algorithm) -> None:
    """Build the libraries for float32 parameters, and those that other dtypes may need."""
    source = inline_includes(emit.render(algorithm, _FUSED_CPU, None))
    dtype_bits_of_source = {source: dtype_variants.bits_of_dtypes([torch.float32])}
    if MACRO in source:
        dtype_bits_of_source[f"#define {MACRO}\n{source}"] = dtype_variants.ALL_DTYPE_BITS
    with ThreadPoolExecutor(max_workers=1) as executor:
        for variant_source, dtype_bits in [
            *dtype_bits_of_source.items(),
            (source, dtype_variants.ALL_DTYPE_BITS),
        ]:
            wait_for_sweeps = dtype_variants.start_sweep_build(executor, variant_source, dtype_bits)
            dtype_variants.library(
                algorithm.module,
                variant_source,
                dtype_bits,
                dtype_variants.matrix_op_dtypes(variant_source),
            )
            wait_for_sweeps()
