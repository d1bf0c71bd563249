"""The mirror of torch.optim.adamax."""

from optgen.generated.adamax import Adamax

__all__ = ["Adamax"]

Adamax.__module__ = __name__
