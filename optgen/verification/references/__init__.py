"""Rules of the catalogue in plain torch, each written anew from its paper or its authors' code."""

from optgen.verification.case import Case
from optgen.verification.references import (
    adam_like,
    curvature,
    eight_bits,
    factored,
    learning_rate_free,
    low_rank,
    momentum,
    newton_schulz,
    schedule_free,
    whole_matrices,
)

_MODULES = (
    *(adam_like, curvature, eight_bits, factored, learning_rate_free, low_rank, momentum),
    *(newton_schulz, schedule_free, whole_matrices),
)
CASES: tuple[Case, ...] = tuple(case for module in _MODULES for case in module.CASES)
"""The cases of all rules. An optimizer has one or two."""
