"""`optgen check --compile`: the C++ of rules, built as first steps on the CPU build it."""

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
    """Build the C++ of specs into the cache; a line for each that can be built.

    Raises:
        ToolchainError: there is no compiler, or it made no library; the message says why.
    """
    for path in dict.fromkeys(spec_path(name) for name in names):
        for algorithm in filter(_CPP.applies, read_spec(path)):
            try:
                _build(algorithm)
            except (build_cache.NoCompilerError, CompileError) as error:
                raise ToolchainError(f"{algorithm.name}: {error}") from None
            yield f"{algorithm.name}: compiles"


def _build(algorithm: Algorithm) -> None:
    """Build what parameters of float32 need, and all that others may need."""
    source = complete(emit.render(algorithm, _CPP, None))
    sources = {source: levels.of_dtypes([torch.float32])}
    if shards.CONDITION in source:
        sources[f"#define {shards.CONDITION}\n{source}"] = levels.ALL
    with ThreadPoolExecutor(1) as beside:
        for text, types in [*sources.items(), (source, levels.ALL)]:
            swept = sweeps.begun(beside, text, types)
            levels.library(algorithm.module, text, types, levels.made(text))
            swept()
