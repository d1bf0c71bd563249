"""The mirror of torch.optim.functional: every functional form, under public names."""

from optgen.optim._adafactor import adafactor
from optgen.optim._muon import muon
from optgen.optim.adadelta import adadelta
from optgen.optim.adagrad import adagrad
from optgen.optim.adam import adam
from optgen.optim.adamax import adamax
from optgen.optim.adamw import adamw
from optgen.optim.asgd import asgd
from optgen.optim.nadam import nadam
from optgen.optim.radam import radam
from optgen.optim.rmsprop import rmsprop
from optgen.optim.rprop import rprop
from optgen.optim.sgd import sgd
from optgen.optim.sparse_adam import sparse_adam

__all__ = [
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "asgd",
    "muon",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
    "sparse_adam",
]
