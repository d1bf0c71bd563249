"""Print loops with software prefetching, for rules that only memory bandwidth bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from optgen.lowerings.fused_cpu.line_layout import indented

STREAMS_READ = 3
"""A loop prefetches only if it reads exactly this number of streams.

Prefetching made loops over two or four streams slower (two: by 5 %).
"""


def constants(array_flags: Mapping[str, str]) -> list[str]:
    """Return the constants that the loop needs before it starts.

    `array_flags` maps each array to the flag that it depends on, or "". The loop prefetches if all
    flags are on.
    """
    flags = [flag for flag in array_flags.values() if flag]
    strip = f"{' && '.join(flags)} ? prefetch_strip<S>(n) : n" if flags else "prefetch_strip<S>(n)"
    return [f"const i64 strip = {strip};"]


def with_prefetch(body: Sequence[str], increment: str, arrays: Iterable[str]) -> list[str]:
    """Return a strip-mined loop that prefetches each strip before computing it.

    The index of a strip's first element is named `begin`, because functions that draw random
    numbers have a parameter `first`.
    """
    prefetches = [f"prefetch({array} + i);" for array in arrays]
    strip_lines = [
        "const i64 end = begin + strip < n ? begin + strip : n;",
        "for (i64 i = begin; strip < n && i < end; i += CACHE_LINE) {",
        *indented(prefetches),
        "}",
        f"for (i64 i = begin; i < end; {increment}) {{",
        *body,
        "}",
    ]
    return ["for (i64 begin = 0; begin < n; begin += strip) {", *indented(strip_lines), "}"]
