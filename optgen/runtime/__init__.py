"""What a generated optimizer needs when it runs; imports the standard library and torch only."""

from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.rule import Rule, State

__all__ = ["GeneratedOptimizer", "Rule", "State"]
