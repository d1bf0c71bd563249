"""The cost model of Newton-Schulz iterations: the cheapest way for matrices of a size.

Work is counted in operations, bytes and calls; a CPU has rates for each of them. Nothing is timed
in a step, so a machine always gives equal bits. `newton_schulz` has the ways. Decisions 0111 and
0118 compare the model with measurements.
"""

from functools import cache
from typing import NamedTuple

import torch

from optgen.runtime import newton_schulz_kernel

BAND = 128  # rows of a symmetric product that are computed at once
WITHOUT_KERNEL = {"compiled": "plain", "compiled square": "square"}

_PANEL = 32  # columns of a symmetric product that the compiled function computes at once
_BAND_LOSS = 0.06  # the time that bands lose, as a share of the whole product
_FEW_ELEMENTS = 128 * 128  # below, a batch saves more in calls than it loses
_FEW_IN_LISTS = 256 * 256  # the same for several tensors
_CLEARLY = 1.04  # times the price of whole products must exceed another way's


class Rates(NamedTuple):
    """Speeds of one CPU core, in units of 1e9 per second. Only their ratios choose a way."""

    low: float  # floating-point operations of a product in bfloat16
    single: float  # of a product in float32
    solve: float  # of decompositions and triangular systems in float32
    bytes: float  # read or written outside of products
    calls: float = 1e-4  # calls of torch
    compiled: float = 0  # operations of the compiled function; 0 if there is none


_NOMINAL = Rates(low=200, single=97, solve=50, bytes=6)


@cache
def rates() -> Rates:
    """Return the rates of this CPU, by its instructions for bfloat16.

    Those of a CPU with AVX512_BF16 are measured (benchmarks/results/matrices.md). The peak of AMX
    is 8 times that. A CPU with neither converts to float32 first.
    """
    if newton_schulz_kernel.load():
        return _NOMINAL._replace(compiled=210, single=103)
    if torch.cpu._is_amx_tile_supported():
        return Rates(low=1600, single=97, solve=50, bytes=6)
    if torch.cpu._is_avx512_bf16_supported():
        return _NOMINAL
    return Rates(low=80, single=97, solve=50, bytes=6)


@cache
def rates_without_bfloat16() -> Rates:
    """Return the rates for iterations in another dtype: all products are as slow as float32's.

    The square factor is as exact as iterations in bfloat16 only, so it is never the cheapest.
    """
    return rates()._replace(low=rates().single, solve=1e-9, compiled=0)


class Cost(NamedTuple):
    """Work of a way: floating-point operations by kind, bytes outside of products, and calls."""

    low: float = 0
    single: float = 0
    solve: float = 0
    bytes: float = 0
    calls: float = 0
    compiled: float = 0

    def seconds(self, by: Rates) -> float:
        """Return the time on one core."""
        return sum(work / rate for work, rate in zip(self, by, strict=True) if work) / 1e9


def cost_of(way: str, rows: int, cols: int, steps: int) -> Cost:
    """Return the work of one matrix with rows <= cols."""
    square, wide = 2.0 * rows**3, 2.0 * rows**2 * cols
    if way in ("batched", "whole"):
        return Cost(low=steps * (2 * wide + square), bytes=steps * 4 * rows * cols, calls=6 * steps)
    if way == "compiled":
        share = _share_of_panels(rows)
        products = share * (wide + square) + wide
        return Cost(compiled=steps * products, bytes=12 * rows * cols, calls=5)
    bands = -(-rows // BAND)
    # Bands of few rows are slower than a whole product. The other half is copied.
    share = (bands + 1) / (2 * bands) + _BAND_LOSS if bands > 1 else 1.0
    products = share * (wide + square) + wide
    moved, calls = 12 * rows**2 + 4 * rows * cols, 8 * bands + 12
    if way == "plain":
        return Cost(low=steps * products, bytes=steps * moved, calls=steps * calls)
    around = Cost(
        single=(share + 1) * wide,
        solve=square / 6 + square / 2,
        bytes=12 * rows * cols + 40 * rows**2,
        calls=20,
    )
    if way == "compiled square":
        share = _share_of_panels(rows)
        single = (share + 1) * wide
        return around._replace(single=single, compiled=(steps * (2 * share + 1) - share) * square)
    return around._replace(
        low=(steps * (2 * share + 1) - share) * square,
        bytes=around.bytes + steps * 16 * rows**2,
        calls=around.calls + steps * calls,
    )


def _share_of_panels(rows: int) -> float:
    """Return the share of a symmetric product that panels compute."""
    return 0.5 + _PANEL / 2 / max(rows, _PANEL)


def choose_way(rows: int, cols: int, steps: int, by: Rates, count: int = 1) -> str:
    """Return the cheapest way for each of `count` matrices of the CPU, with rows <= cols.

    Whole products are taken unless another way is clearly cheaper: they are what torch's Muon does.
    The compiled function would pad matrices of fewer rows than a panel has columns.
    """
    if by.compiled and rows >= _PANEL:
        return min(WITHOUT_KERNEL, key=lambda way: cost_of(way, rows, cols, steps).seconds(by))
    if rows * cols < _FEW_ELEMENTS:
        return "batched"

    def price(way: str) -> float:
        return cost_of(way, rows, cols, steps).seconds(by) * (1 if way == "whole" else _CLEARLY)

    way = min(("whole", "plain", "square"), key=price)
    is_batch_cheaper = count > 1 and rows * cols < _FEW_IN_LISTS
    return "batched" if way == "whole" and is_batch_cheaper else way


def work(rows: int, cols: int) -> float:
    """Return the seconds of five iterations of a matrix, to divide matrices among ranks.

    They are those of one nominal CPU, so that ranks of different machines find equal numbers.
    """
    short, long = sorted((rows, cols))
    way = choose_way(short, long, 5, _NOMINAL)
    return cost_of(way, short, long, 5).seconds(_NOMINAL)
