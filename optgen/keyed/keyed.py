"""The names of `torchrec.optim.keyed`: keyed optimizers and wrappers."""

from optgen.keyed.combined import CombinedOptimizer
from optgen.keyed.keyed_optimizer import KeyedOptimizer
from optgen.keyed.wrappers import KeyedOptimizerWrapper, OptimizerWrapper

__all__ = ["CombinedOptimizer", "KeyedOptimizer", "KeyedOptimizerWrapper", "OptimizerWrapper"]
