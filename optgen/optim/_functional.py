"""The mirror of torch.optim._functional: every functional form under one roof."""

from optgen.optim.adam import adam
from optgen.optim.adamw import adamw
from optgen.optim.nadam import nadam
from optgen.optim.radam import radam
from optgen.optim.rmsprop import rmsprop
from optgen.optim.sgd import sgd

__all__ = ["adam", "adamw", "nadam", "radam", "rmsprop", "sgd"]
