"""The mirror of torchrec.optim, written by hand: optimizers that know parameters by name.

In torchrec, the classes SGD, Adagrad and Adam only say how embedding tables are updated. Here they
are the classes of optgen.optim.
"""

import sys

from optgen.generated.row_wise_adagrad import RowWiseAdagrad
from optgen.keyed import checkpoint, keyed, update_in_backward, warmup
from optgen.keyed.apply_optimizer_in_backward import (
    apply_optimizer_in_backward,
    in_backward_optimizer_filter,
)
from optgen.keyed.clipping import GradientClipping, GradientClippingOptimizer
from optgen.keyed.fused import (
    EmptyFusedOptimizer,
    FusedOptimizer,
    FusedOptimizerModule,
    fused_optimizer_of,
)
from optgen.keyed.keyed import (
    CombinedOptimizer,
    KeyedOptimizer,
    KeyedOptimizerWrapper,
    OptimizerWrapper,
)
from optgen.keyed.update_in_backward import FusedEmbedding, FusedEmbeddingBag, UpdateInBackward
from optgen.keyed.warmup import WarmupOptimizer, WarmupPolicy, WarmupStage
from optgen.optim import SGD, Adagrad, Adam

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "CombinedOptimizer",
    "EmptyFusedOptimizer",
    "FusedEmbedding",
    "FusedEmbeddingBag",
    "FusedOptimizer",
    "FusedOptimizerModule",
    "GradientClipping",
    "GradientClippingOptimizer",
    "KeyedOptimizer",
    "KeyedOptimizerWrapper",
    "OptimizerWrapper",
    "RowWiseAdagrad",
    "UpdateInBackward",
    "WarmupOptimizer",
    "WarmupPolicy",
    "WarmupStage",
    "apply_optimizer_in_backward",
    "fused_optimizer_of",
    "in_backward_optimizer_filter",
]

for _name in __all__:
    if getattr(globals()[_name], "__module__", "").startswith(f"{__name__}."):
        globals()[_name].__module__ = __name__  # so a pickle does not depend on the files
RowWiseAdagrad.__module__ = __name__

# Pickles of earlier versions name these modules.
for _earlier, _present in {
    "combined": keyed,
    "keyed_optimizer": keyed,
    "wrappers": keyed,
    "extended_state": checkpoint,
    "warmup_stages": warmup,
    "embedding": update_in_backward,
}.items():
    sys.modules[f"{__name__}.{_earlier}"] = _present
