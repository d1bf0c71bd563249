"""The mirror of torchrec.optim, written by hand: optimizers that know parameters by name."""

from optgen.keyed.combined import CombinedOptimizer
from optgen.keyed.keyed_optimizer import KeyedOptimizer
from optgen.keyed.stages import WarmupPolicy, WarmupStage
from optgen.keyed.warmup import WarmupOptimizer
from optgen.keyed.wrappers import KeyedOptimizerWrapper, OptimizerWrapper

__all__ = [
    "CombinedOptimizer",
    "KeyedOptimizer",
    "KeyedOptimizerWrapper",
    "OptimizerWrapper",
    "WarmupOptimizer",
    "WarmupPolicy",
    "WarmupStage",
]
