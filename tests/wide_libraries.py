"""Build each C++ library of the tests once, for all dtypes.

A user's library is built for the dtypes of a model, and again when others come. The tests use a
rule with many sets of dtypes. A library for all of them takes about as long to build as one for
two, and the cache finds it for each set. Tests of the builds themselves, in the folder `toolchain`,
build exactly what they ask for. So do processes that tests start, such as `examples/demo.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optgen.runtime.fused_cpu.toolchain import dtype_variants

_ROOT = Path(__file__).parents[1]
_SPECS = [*(_ROOT / "specs").glob("*.py"), *(_ROOT / "tests" / "specs").glob("*.py")]
_OFTEN = {"sweeps", *(path.stem for path in _SPECS)}
build_exactly = dtype_variants.build


def install() -> None:
    """Build wide libraries in this process from now on."""
    dtype_variants.build = _build_wide


def _build_wide(name: str, source: str, dtype_bits: int, extra: int) -> Any:
    """Build a library for all dtypes.

    A kernel with phases takes twice as long for all of them: that of a test's own rule is built for
    those it asks for.
    """
    if name not in _OFTEN and "optgen_sweep" in source:
        return build_exactly(name, source, dtype_bits, extra)
    return build_exactly(name, source, dtype_variants.ALL, extra)
