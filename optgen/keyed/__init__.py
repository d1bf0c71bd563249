"""The mirror of torchrec.optim, written by hand: optimizers that know parameters by name."""

from optgen.generated.row_wise_adagrad import RowWiseAdagrad
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
    "RowWiseAdagrad",
    "WarmupOptimizer",
    "WarmupPolicy",
    "WarmupStage",
]

RowWiseAdagrad.__module__ = __name__
