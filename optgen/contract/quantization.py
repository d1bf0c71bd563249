"""List the formats of quantized states: codes, and a float32 scale for each block of codes.

A code stands for a share: a number, divided by the scale of its block. A map says for which one.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class CodeMap(NamedTuple):
    """The shares for which codes stand."""

    largest: float  # the largest share; a scale is the largest magnitude of a block, divided by it
    smallest: float  # the smallest share above 0
    error: float  # of a rounded number, relative to it, as comparisons of steps expect it
    bits: int = 8  # of a code; codes of 4 bits lie in pairs, the first in the high bits of a byte


CODE_MAPS: Final = {
    "dynamic": CodeMap(1.0, 2.0**-24, 2.0**-7),
    "linear": CodeMap(1.0, 1 / 127, 2.0**-7),
    # float8_e4m3fn: 4 bits of exponent, 3 of mantissa, as in torchao.optim's OptimStateFp8
    "e4m3": CodeMap(448.0, 2.0**-9, 2.0**-6),
    # "dynamic" with a sign and 8 shares; 16 shares in equal steps in a block without signs
    "dynamic4": CodeMap(1.0, 1 / 15, 2.0**-3, bits=4),
}
"""The maps by their names. `ir/rounding.py` defines them."""


class Quantization(NamedTuple):
    """A dtype of quantized states."""

    name: str  # as texts call it, such as "8 bits"
    maps: tuple[str, ...]  # the maps that a state can choose; the first is the default
    block: int  # the default number of elements that share a scale


QUANTIZATIONS: Final = {
    "8bit": Quantization("8 bits", ("dynamic", "linear"), 256),
    "fp8": Quantization("fp8", ("e4m3",), 256),
    "4bit": Quantization("4 bits", ("dynamic4",), 128),
}
"""The dtypes of quantized states, by the names that specs give them."""

BLOCKS: Final = (64, 128, 256, 512)
"""Numbers of elements that a block may have."""
