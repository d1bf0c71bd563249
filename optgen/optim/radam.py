"""The mirror of torch.optim.radam."""

from optgen.generated.radam import RAdam

__all__ = ["RAdam"]

RAdam.__module__ = __name__
