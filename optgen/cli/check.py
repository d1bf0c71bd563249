"""Implement `optgen check`, which reads specs, generates and compiles them, and writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import filterfalse
from pathlib import Path

from optgen import emit
from optgen.cli.catalogue import complete, read, render, spec_path
from optgen.emit import ToolchainError
from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Place, assigns
from optgen.lowerings import LOWERINGS
from optgen.passes.outline_sweeps import outline_sweeps, with_sweeps
from optgen.passes.plan_rule import plans
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.composition.find_parts import is_modifier
from optgen.spec.declare import Spec, hypers_of
from optgen.spec.errors import InternalError, SpecError
from optgen.spec.read_spec import read_spec
from optgen.spec.semantic_checks import batch_warning

_PLAIN_RULE = '''from optgen.spec import optimizer, sqrt, state, hyper


@optimizer(paper="https://example.org")
def Checked(
    own_p, own_g, own_t, /, own_v=state("own_v", role="second_moment"), *, lr=hyper(1e-3, ge=0)
):
    """A rule that any modifier can join."""
    own_v = own_v + own_g**2
    own_p = own_p - lr * own_g / (own_t + sqrt(own_v))
'''
"""A modifier is checked in a composition with this rule."""


def check(names: Sequence[str]) -> Iterator[str | SpecError | InternalError]:
    """Read and generate specs without writing anything.

    Yield a line for each correct algorithm, its warning if there is one, and the first error of
    each wrong file. Files are checked one by one: two of them may hold classes of the same name,
    since only `build` writes into one folder.
    """
    for path in dict.fromkeys(spec_path(name) for name in names):
        try:
            if is_modifier(path):
                yield _check_modifier(path)
                continue
            algorithms = read([path])
            for algorithm in algorithms:
                render(algorithm, emit.find_ruff())
        except (SpecError, InternalError) as error:
            yield error
            continue
        for algorithm in algorithms:
            yield f"{algorithm.name}: ok ({_summary(complete(algorithm))})"
            if warning := batch_warning(algorithm):
                yield str(warning)


def _check_modifier(path: Path) -> str:
    """Generate a plain rule with the modifier of a file; return a line about the modifier."""
    from optgen import modifiers  # imports torch, which the check of an optimizer does not need
    from optgen.compositions import composed_spec, errors_of_parts

    modifier = modifiers.load(path)
    try:
        spec = composed_spec(Spec("Checked", _PLAIN_RULE, "checked.py", 1), (modifier,), "Checked")
    except CompositionError as error:
        raise SpecError(Place(str(path), 1, 1), str(error), "choose other names") from None
    with errors_of_parts(spec, names_parts=False):
        (algorithm,) = read_spec(spec)
        render(algorithm, emit.find_ruff())
    hypers = ", ".join(name for name, _ in hypers_of(modifier.spec)) or "none"
    return f"{modifier.name}: ok (a modifier; hyperparameters: {hypers})"


def _summary(algorithm: Algorithm) -> str:
    """Return the states of an optimizer, or the lists that a function writes, as text."""
    if algorithm.is_function:
        written = {stmt.target.name for stmt in assigns(algorithm.rule)}
        return f"writes: {', '.join(name for name in algorithm.lists if name in written)}"
    states = ", ".join(state.key for state in algorithm.checkpoint_states()) or "none"
    programs = ", ".join(f"{p.mode} by {p.function.name}" for p in algorithm.programs)
    return f"state: {states}; {programs}" if programs else f"state: {states}"


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
    # Only this needs torch.
    from optgen.runtime.toolchain.compiler import CompileError
    from optgen.runtime.toolchain.library_cache import NoCompilerError

    try:
        _build_libraries(algorithm)
    except (NoCompilerError, CompileError) as error:
        raise ToolchainError(f"{algorithm.name}: {error}") from None
    return f"{algorithm.name}: compiles"


def _build_libraries(algorithm: Algorithm) -> None:
    """Build the libraries for float32 parameters, and those that other dtypes may need."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from optgen.runtime.fused_cpu.suspending_kernel import MACRO
    from optgen.runtime.toolchain import dtype_variants
    from optgen.runtime.toolchain.library_cache import inline_includes

    source = inline_includes(emit.render(algorithm, _FUSED_CPU, None))
    calls = [call for plan in plans(algorithm) for call in plan.matrix_calls]
    extra_bits = dtype_variants.matrix_op_dtypes(call.options for call in calls)
    dtype_bits_of_source = {source: dtype_variants.bits_of_dtypes([torch.float32])}
    if MACRO in source:
        dtype_bits_of_source[f"#define {MACRO}\n{source}"] = dtype_variants.ALL_DTYPE_BITS
    with ThreadPoolExecutor(max_workers=1) as executor:
        for variant_source, dtype_bits in [
            *dtype_bits_of_source.items(),
            (source, dtype_variants.ALL_DTYPE_BITS),
        ]:
            wait_for_sweeps = dtype_variants.start_sweep_build(
                executor, variant_source, dtype_bits, extra_bits
            )
            dtype_variants.library(algorithm.module, variant_source, dtype_bits, extra_bits)
            wait_for_sweeps()
