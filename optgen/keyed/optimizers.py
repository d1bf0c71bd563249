"""The names of `torchrec.optim.optimizers`, without the classes that optgen lacks."""

from optgen.keyed.apply_optimizer_in_backward import in_backward_optimizer_filter
from optgen.optim import SGD, Adagrad, Adam

__all__ = ["SGD", "Adagrad", "Adam", "in_backward_optimizer_filter"]
