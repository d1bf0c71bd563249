"""What torchrec has under this name, as far as it is here."""

from optgen.keyed.backward_hooks import in_backward_optimizer_filter
from optgen.optim import SGD, Adagrad, Adam

__all__ = ["SGD", "Adagrad", "Adam", "in_backward_optimizer_filter"]
