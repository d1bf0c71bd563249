"""The mirror of torch.optim.lr_scheduler, written by hand. The schedulers drive any optimizer.

A schedule is a pure function of the step (`shaped`). A scheduler (`base`) keeps the
step and the initial rates, and loads checkpoints. Composites combine schedulers.
"""

from optgen.optim.lr_scheduler.base import EPOCH_DEPRECATION_WARNING as EPOCH_DEPRECATION_WARNING
from optgen.optim.lr_scheduler.base import LRScheduler
from optgen.optim.lr_scheduler.base import _LRScheduler as _LRScheduler
from optgen.optim.lr_scheduler.composites import ChainedScheduler, SequentialLR
from optgen.optim.lr_scheduler.cycles import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from optgen.optim.lr_scheduler.plateau import ReduceLROnPlateau
from optgen.optim.lr_scheduler.preview import preview
from optgen.optim.lr_scheduler.shaped import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    PolynomialLR,
    ShapedLR,
    StepLR,
    WarmupStableDecayLR,
)
from optgen.optim.lr_scheduler.user_functions import LambdaLR, MultiplicativeLR

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "ShapedLR",
    "StepLR",
    "WarmupStableDecayLR",
    "preview",
]

for _name in (*__all__, "_LRScheduler"):
    globals()[_name].__module__ = __name__
