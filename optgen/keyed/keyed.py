"""What torchrec has under this name: keyed optimizers and what stands around them."""

from optgen.keyed.combined import CombinedOptimizer
from optgen.keyed.keyed_optimizer import KeyedOptimizer
from optgen.keyed.wrappers import KeyedOptimizerWrapper, OptimizerWrapper

__all__ = ["CombinedOptimizer", "KeyedOptimizer", "KeyedOptimizerWrapper", "OptimizerWrapper"]
