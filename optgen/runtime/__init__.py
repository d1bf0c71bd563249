"""The runtime of generated optimizers; imports only the standard library and torch."""

from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.rule import Rule, State

__all__ = ["GeneratedOptimizer", "Rule", "State"]
