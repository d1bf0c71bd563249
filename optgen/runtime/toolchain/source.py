"""Inline optgen's own headers into a C++ source, so that a compiler needs one text."""

import re
from pathlib import Path

_INCLUDE = re.compile(
    r'^#include "optgen/runtime/((?:fused_cpu/include|reader)/\w+\.h)"\n', re.MULTILINE
)
_FOLDER = Path(__file__).parents[1]


def inline_includes(source: str) -> str:
    """Return a source with optgen's headers in place of its includes, each header once."""
    pasted: set[str] = set()

    def paste(include: re.Match[str]) -> str:
        name = include[1]
        if name in pasted:
            return ""
        pasted.add(name)
        return _INCLUDE.sub(paste, (_FOLDER / name).read_text())

    return _INCLUDE.sub(paste, source)
