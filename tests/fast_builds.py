"""Make builds of C++ libraries cheap in tests: many dtypes in one build, or few optimizations.

A user's library is built for the dtypes of a model, and again for further dtypes. The tests use a
rule with many sets of dtypes. So one library is built for all of them, and the cache finds it for
each set. Few tests use papers' rules in 16 bits, so their libraries have only float32 and float64.

Optimizations take most of the time of a build. The user's flags allow none that changes a result,
so only the rules of torch's classes, and a few others, are built with these flags.

Tests of the builds themselves, in the folder `toolchain`, build exactly what they ask for. So do
processes that tests start, such as `examples/demo.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from compiler_flags import accepted_flags
from spec_files import REPRESENTATIVES, TEST_SPECS, TORCH_SPECS

from optgen.runtime.toolchain import compiler, dtype_variants

# CAME: a test compares sums over streams of two dtypes; only optimized builds add in one order.
_OPTIMIZED = {"sweeps", "came", *(path.stem for path in TORCH_SPECS)}
_TEST_RULES = {*(path.stem for path in TEST_SPECS.glob("*.py")), *REPRESENTATIVES}
_SINGLE_AND_DOUBLE = dtype_variants.bits_of_dtypes([torch.float32, torch.float64])
_LEVEL_MARKS = {"-O0": "// without optimizations\n", "-Og": "// with few optimizations\n"}
# Headers ask for optimizations, too.
_OPTIMIZE = re.compile(r"^#pragma GCC optimize(?:.*\\\n)*.*\n", re.M)
_INLINE = "__attribute__((always_inline)) inline"  # takes a quarter of an unoptimized build
build_exactly, find_exactly = dtype_variants.build, dtype_variants.find_built
_compile_exactly = compiler.build


def install() -> None:
    """Replace the builds of libraries in this process."""
    dtype_variants.build, dtype_variants.find_built = _build_for_more_dtypes, _find_marked
    compiler.build = _compile_quickly


def _build_for_more_dtypes(name: str, source: str, dtype_bits: int, extra: int) -> Any:
    """Build a library; for many rules, for more dtypes than the caller asks for."""
    if name in _OPTIMIZED:
        dtype_bits = dtype_variants.ALL_DTYPE_BITS
    elif name in _TEST_RULES:
        dtype_bits |= _SINGLE_AND_DOUBLE
    return build_exactly(name, _mark_source(name, source), dtype_bits, extra)


def _find_marked(name: str, source: str, dtype_bits: int, extra: int) -> Any:
    return find_exactly(name, _mark_source(name, source), dtype_bits, extra)


def _mark_source(name: str, source: str) -> str:
    """Mark a source with its optimization level.

    It is `-Og` for rules with phases, because their tests use large tensors.
    """
    if name in _OPTIMIZED or "optgen from specs/averaging.py" in source:
        return source
    if "optgen_sweep" in source:
        return _LEVEL_MARKS["-Og"] + _OPTIMIZE.sub("", source)
    return _LEVEL_MARKS["-O0"] + _OPTIMIZE.sub("", source).replace(_INLINE, "inline")


def _compile_quickly(
    command: list[str],
    source: Path,
    target: Path,
    flag_sets: compiler.FlagSets = compiler.FLAG_SETS,
) -> None:
    """Compile; if a marked source fails, compile it with the user's flags, for the user's error."""
    text = source.read_text()
    levels = [level for level, mark in _LEVEL_MARKS.items() if mark in text]
    for level in levels:
        flags = [level if flag == "-O3" else flag for flag in accepted_flags(tuple(command))]
        full_command = [*command, *flags, str(source), "-o", str(target)]
        status, _ = compiler.run(full_command, target.parent, compiler.time_limit())
        if status == 0 and target.is_file():
            return
    _compile_exactly(command, source, target, flag_sets)
