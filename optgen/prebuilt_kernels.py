"""Build the C++ kernels of optimizers ahead, for machines that have no compiler.

A folder of such libraries is named by `$OPTGEN_KERNELS`, or lies as `kernels` beside the generated
packages, where a wheel can carry it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path

import torch

from optgen.jit import load
from optgen.runtime import float32_products, newton_schulz_kernel
from optgen.runtime.eager.tensor_lists import Sweep
from optgen.runtime.fused_cpu.kernel_loader import library_sources, why_too_many_states
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.rule import HasLowerings, Rule
from optgen.runtime.toolchain import dtype_variants, library_cache, processors
from optgen.spec.declare import Spec

DTYPES = (torch.float32, torch.bfloat16)
"""The dtypes of most models; a kernel for bfloat16 computes in float32."""


def build_kernels(
    optimizers: Iterable[type[GeneratedOptimizer] | str | os.PathLike[str] | Spec],
    out: str | os.PathLike[str],
    *,
    dtypes: Iterable[torch.dtype] = DTYPES,
    levels: Iterable[str] | None = None,
    report: Callable[[Path], object] | None = None,
) -> list[Path]:
    """Build the libraries that fused steps on the CPU load.

    One library serves all `dtypes` together. Steps of sharded parameters need a further library,
    which is built too; so do products of matrices (SOAP), on x86-64-v4, and Newton-Schulz
    iterations (Muon), with AVX512_BF16. A library is found by the digest of its source, so it
    serves the version of optgen that built it, and no other.

    Args:
        optimizers: Classes of `optgen.optim` or of `compose`, names of the catalogue, paths of
            spec files, or specs.
        out: The folder; it is made if it is not there. Set `OPTGEN_KERNELS` to it where steps run.
        dtypes: The dtypes of parameters, gradients and states that steps will have.
        levels: The levels of processors to build for: `"x86-64-v4"`, `"x86-64-v3"` and `"x86-64"`,
            `"portable"` on other architectures, or `"native"` for processors like this machine's.
            By default all of these but `"native"`. A machine takes the highest that it can run.
            `"x86-64-v4-bf16"` is x86-64-v4 with AVX512_BF16; the iterations' library is of this
            level where others are of x86-64-v4.
        report: Called with the path of each library when it is there: a build takes seconds.

    Returns:
        The paths of the libraries.

    Raises:
        TypeError: An optimizer has no generated lowerings.
        ValueError: A level or a dtype is unknown, or the rule has no C++ kernel.
        NoCompilerError: This machine has no compiler.
        CompileError: The compiler made no library.
        OSError: The folder cannot be written to.
    """
    folder = Path(out).expanduser().absolute()
    chosen = [processors.find(name) for name in levels or ()] or processors.SHARED_LEVELS
    dtype_bits = _bits(tuple(dtypes))
    libraries: dict[tuple[tuple[str, str], processors.Level], None] = {}
    for optimizer in map(_class, optimizers):
        libraries.update(dict.fromkeys(product(_sources(optimizer, dtype_bits), chosen)))
        for named_source, needed in _sources_of_matrix_functions(optimizer.rule):
            pairs = ((named_source, level) for level in _at_least(needed, chosen))
            libraries.update(dict.fromkeys(pairs))
    folder.mkdir(parents=True, exist_ok=True)
    built = []
    for (name, source), level in libraries:
        built.append(library_cache.prebuild(name, source, level, folder))
        if report is not None:
            report(built[-1])
    return built


def _class(optimizer: type[GeneratedOptimizer] | str | os.PathLike[str] | Spec) -> HasLowerings:
    if not isinstance(optimizer, type):
        return load(optimizer)
    if not issubclass(optimizer, GeneratedOptimizer):
        raise TypeError(
            f"{optimizer.__name__} is no generated optimizer: pass a class of optgen.optim or of "
            "compose, a name of the catalogue, or a spec file"
        )
    return optimizer


def _sources(optimizer: HasLowerings, dtype_bits: int) -> Iterator[tuple[str, str]]:
    rule = optimizer.rule
    if reason := why_too_many_states(rule):
        raise ValueError(f"{rule.name} has no C++ kernel: {reason}")
    if rule.why_uncut:
        for part in _parts(optimizer):
            yield from library_sources(part, dtype_bits, suspends=False)
        return
    for suspends in (True,) if rule.wide else (False, True):
        yield from library_sources(optimizer, dtype_bits, suspends)


def _parts(optimizer: HasLowerings) -> Iterator[HasLowerings]:
    """Yield the functions that a rule on whole matrices calls between two matrix words."""
    for value in vars(importlib.import_module(f"{optimizer.lowerings}.outlined")).values():
        if isinstance(value, Sweep):
            yield value.function


def _sources_of_matrix_functions(rule: Rule) -> Iterator[tuple[tuple[str, str], processors.Level]]:
    """Yield functions on whole matrices that steps may call, and the level that each needs.

    A rule that is not cut into sweeps does not say which matrix words it calls.
    """
    if rule.matrix_calls or rule.why_uncut:
        yield float32_products.library_source(), processors.V4
    dtypes = [call.options[1:2] for call in rule.matrix_calls if call.op == "orthogonalize"]
    if rule.why_uncut or any(dtype != ("float32",) for dtype in dtypes):
        yield newton_schulz_kernel.library_source(), processors.BFLOAT16


def _at_least(
    needed: processors.Level, levels: Iterable[processors.Level]
) -> Iterator[processors.Level]:
    """Yield the levels at which a library that needs one serves processors of some levels."""
    is_here = needed in processors.levels_here()
    for level in levels:
        if level is processors.NATIVE and is_here:
            yield level
        elif level in (processors.V4, processors.BFLOAT16):
            yield needed


def _bits(dtypes: tuple[torch.dtype, ...]) -> int:
    for dtype in dtypes:
        if dtype not in dtype_variants.DTYPE_CODES:
            known = ", ".join(
                str(each).removeprefix("torch.") for each in dtype_variants.DTYPE_CODES
            )
            raise ValueError(f"kernels do not compute with {dtype}: choose from {known}")
    return dtype_variants.bits_of_dtypes(dtypes)
