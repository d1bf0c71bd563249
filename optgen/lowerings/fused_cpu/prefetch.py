"""Loops that ask for memory in bursts, ahead of themselves: those that only memory holds up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from optgen.lowerings.fused_cpu.line_layout import indented

STREAMS_READ = 3
"""So many are read: loops over four were slower for it, and over two by a twentieth."""


def constants(streams: Mapping[str, str]) -> list[str]:
    """What such a loop knows before it begins. `streams` are arrays and flags: all are to be on."""
    flags = [flag for flag in streams.values() if flag]
    strip = f"{' && '.join(flags)} ? burst<S>(n) : n" if flags else "burst<S>(n)"
    return [f"const i64 strip = {strip};"]


def with_prefetch(inside: Sequence[str], step: str, arrays: Iterable[str]) -> list[str]:
    """A loop over strips, and one over the elements of each."""
    asks = [f"ask({array} + i);" for array in arrays]
    parts = [
        "const i64 end = first + strip < n ? first + strip : n;",
        "for (i64 i = first; strip < n && i < end; i += LINE) {",
        *indented(asks),
        "}",
        f"for (i64 i = first; i < end; {step}) {{",
        *inside,
        "}",
    ]
    return ["for (i64 first = 0; first < n; first += strip) {", *indented(parts), "}"]
