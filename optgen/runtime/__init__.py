"""The runtime of generated optimizers: the standard library, torch, and Triton for its kernels."""

from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.rule import Rule, State

__all__ = ["GeneratedOptimizer", "Rule", "State"]
