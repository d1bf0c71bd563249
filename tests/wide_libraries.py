"""Build each C++ library of the tests once, or quickly.

A user's library is built for the dtypes of a model, and again when others come. The tests use a
published rule with many sets of dtypes. A library for all of them is built once, and the cache
finds it for each set.

Published rules are built with a user's flags. Rules of tests and compositions are built with few
optimizations, which take most of a build: the flags allow none that changes a result.

Tests of the builds themselves, in the folder `toolchain`, build exactly what they ask for. So do
processes that tests start, such as `examples/demo.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from optgen.runtime.fused_cpu.toolchain import compiler, dtype_variants

_ROOT = Path(__file__).parents[1]
_SPECS = [*(_ROOT / "specs").glob("*.py"), *(_ROOT / "tests" / "specs").glob("*.py")]
_PUBLISHED = {"sweeps", *(path.stem for path in _SPECS)}
_QUICK = {"-O0": "// without optimizations\n", "-O1": "// with few optimizations\n"}
_OPTIMIZE = re.compile(r"^#pragma GCC optimize.*\n", re.M)  # headers ask for some, too
_FLAGS = tuple(flag for flag in compiler.FLAG_SETS[0] if flag != "-O3")
build_exactly, find_exactly = dtype_variants.build, dtype_variants.find_built
_compile = compiler.build


def install() -> None:
    """Build such libraries in this process from now on."""
    dtype_variants.build, dtype_variants.find_built = _build_wide, _find_wide
    compiler.build = _compile_quickly


def _build_wide(name: str, source: str, dtype_bits: int, extra: int) -> Any:
    """Build a library: that of a published rule for all dtypes."""
    bits = dtype_variants.ALL if name in _PUBLISHED else dtype_bits
    return build_exactly(name, _marked(name, source), bits, extra)


def _find_wide(name: str, source: str, dtype_bits: int, extra: int) -> Any:
    return find_exactly(name, _marked(name, source), dtype_bits, extra)


def _marked(name: str, source: str) -> str:
    """Mark a source with its flag. Rules with phases take steps on large tensors, too."""
    if name in _PUBLISHED:
        return source
    return _QUICK["-O1" if "optgen_sweep" in source else "-O0"] + _OPTIMIZE.sub("", source)


def _compile_quickly(command: list[str], source: Path, target: Path) -> None:
    """Compile; if a marked source does not compile, do it as for a user, for the same error."""
    text = source.read_text()
    for level in (level for level, mark in _QUICK.items() if mark in text):
        whole = [*command, level, *_FLAGS, str(source), "-o", str(target)]
        status, _ = compiler.run(whole, target.parent, compiler.limit())
        if status == 0 and target.is_file():
            return
    _compile(command, source, target)
