"""A hyperparameter that only starts a state is the runtime's: no lowering is handed it."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import names_read


def drop_unused_hypers(algorithm: Algorithm) -> Algorithm:
    """The same algorithm, with the hyperparameters that its rule asks for."""
    read = names_read(algorithm.rule)
    return replace(algorithm, hypers=tuple(h for h in algorithm.hypers if h.name in read))
