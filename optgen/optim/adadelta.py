"""The mirror of torch.optim.adadelta."""

from optgen.generated.adadelta import Adadelta

__all__ = ["Adadelta"]

Adadelta.__module__ = __name__
