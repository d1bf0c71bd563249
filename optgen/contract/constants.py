"""Define the constants by which every lowering, on every device, computes equal results.

Headers of C++ and device functions of Triton repeat some of them, because they import nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Threefry-2x32: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011)
THREEFRY_ROUNDS: Final = 13
THREEFRY_ROTATIONS: Final = (13, 15, 26, 6, 17, 29, 16, 24)
THREEFRY_PARITY: Final = 0x1BD11BDA

# triple32, a permutation of words of 32 bits, of Chris Wellons's hash-prospector
TRIPLE32_MULTIPLIERS: Final = (0xED5AD4BB, 0xAC4C1B51, 0x31848BAB)
TRIPLE32_SHIFTS: Final = (17, 11, 15, 14)
KEY_INCREMENT: Final = 0x9E3779B9
"""The number added to the key of triple32 once for each 2**32 counters."""

NUM_SEEDS: Final = 2**24
"""Seeds and streams are whole numbers below 2**24, which a float32 holds exactly."""

SMALLEST_SCALE: Final = 2.0**-100
"""A block of a quantized state whose largest magnitude is smaller becomes zeros."""
TOO_LARGE_SCALE: Final = 2.0**126
"""A block of a quantized state whose largest magnitude is not below this becomes NaN."""

EIGENVALUE_ROUNDING: Final = 8.0
"""Machine epsilons of the largest eigenvalue that an eigenvalue of 0 may become by rounding."""


class Format(NamedTuple):
    """A floating-point format in which parameters are stored."""

    eps: float  # the distance from 1 to the next number
    tiny: float  # the smallest normal number
    largest: float  # the largest finite number


FORMATS: Final = {
    "bfloat16": Format(2.0**-7, 2.0**-126, 2.0**128 - 2.0**120),
    "float16": Format(2.0**-10, 2.0**-14, 65504.0),
    "float32": Format(2.0**-23, 2.0**-126, 2.0**128 - 2.0**104),
    "float64": Format(2.0**-52, 2.0**-1022, 1.7976931348623157e308),
}
"""The formats by the names of torch's dtypes. Rules read `eps`, so it must tell them apart."""
