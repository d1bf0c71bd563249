"""The mirror of torch.optim.sgd."""

from optgen.generated.sgd import SGD

__all__ = ["SGD"]

SGD.__module__ = __name__
