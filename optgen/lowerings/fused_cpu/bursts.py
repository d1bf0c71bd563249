"""Loops that ask for memory in bursts, ahead of themselves: those that only memory holds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optgen.lowerings.fused_cpu.text import indented

STREAMS = 3  # read: loops over four were slower for it, those over two were not measured


def constants() -> list[str]:
    """What such a loop knows before it begins."""
    return ["const i64 strip = burst<S>(n);"]


def in_bursts(inside: Sequence[str], step: str, streams: Mapping[str, str]) -> list[str]:
    """A loop over strips, and one over the elements of each; `streams` are arrays and flags."""
    asks = [
        f"{f'if constexpr ({flag}) ' if flag else ''}ask({array} + i);"
        for array, flag in streams.items()
    ]
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
