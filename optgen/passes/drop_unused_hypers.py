"""Drop hyperparameters that the rule never reads, such as one that only initializes a state."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import names_read
from optgen.passes.expand_reductions import expand_reductions


def drop_unused_hypers(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with only the hyperparameters that its rule reads."""
    rule = expand_reductions(algorithm).rule if algorithm.has_rank else algorithm.rule
    read = names_read(rule)  # a mean over an axis of the rank's size reads the rank
    return replace(algorithm, hypers=tuple(h for h in algorithm.hypers if h.name in read))
