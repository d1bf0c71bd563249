"""Implement `optgen check --compile`, which builds the C++ of rules as a first step does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from optgen import emit
from optgen.cli.locate_specs import spec_path
from optgen.emit import ToolchainError
from optgen.ir.algorithm import Algorithm
from optgen.lowerings import LOWERINGS
from optgen.runtime.fused_cpu import build_cache, levels, shards, sweeps
from optgen.runtime.fused_cpu.compiler import CompileError
from optgen.runtime.fused_cpu.source import complete
from optgen.spec.read_spec import read_spec

(_CPP,) = (lowering for lowering in LOWERINGS if lowering.name == "fused_cpu")


def compiled(names: Iterable[str]) -> Iterator[str]:
    """Build the C++ of specs into the cache, and yield a line for each that compiles.

    Raises:
        ToolchainError: there is no compiler, or it failed; the message says why.
    """
    for path in dict.fromkeys(spec_path(name) for name in names):
        for algorithm in filter(_CPP.applies, read_spec(path)):
            try:
                _build(algorithm)
            except (build_cache.NoCompilerError, CompileError) as error:
                raise ToolchainError(f"{algorithm.name}: {error}") from None
            yield f"{algorithm.name}: compiles"


def _build(algorithm: Algorithm) -> None:
    """Build the libraries for float32 parameters, and those that other dtypes may need."""
    source = complete(emit.render(algorithm, _CPP, None))
    sources = {source: levels.of_dtypes([torch.float32])}
    if shards.CONDITION in source:
        sources[f"#define {shards.CONDITION}\n{source}"] = levels.ALL
    with ThreadPoolExecutor(1) as beside:
        for text, types in [*sources.items(), (source, levels.ALL)]:
            swept = sweeps.begun(beside, text, types)
            levels.library(algorithm.module, text, types, levels.made(text))
            swept()
