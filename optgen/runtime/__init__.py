"""The runtime of generated optimizers: the standard library, torch, and Triton for its kernels."""

from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.rule import MatrixCall, Rule, State

__all__ = ["GeneratedOptimizer", "MatrixCall", "Rule", "State"]
