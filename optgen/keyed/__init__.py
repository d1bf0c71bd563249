"""The mirror of torchrec.optim, written by hand: optimizers that know parameters by name.

SGD, Adagrad and Adam, which torchrec has as names of what its tables do, are those of optgen.optim.
"""

from optgen.generated.row_wise_adagrad import RowWiseAdagrad
from optgen.keyed.combined import CombinedOptimizer
from optgen.keyed.keyed_optimizer import KeyedOptimizer
from optgen.keyed.stages import WarmupPolicy, WarmupStage
from optgen.keyed.warmup import WarmupOptimizer
from optgen.keyed.wrappers import KeyedOptimizerWrapper, OptimizerWrapper
from optgen.optim import SGD, Adagrad, Adam

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
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
