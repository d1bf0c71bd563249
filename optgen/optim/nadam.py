"""The mirror of torch.optim.nadam."""

from optgen.generated.nadam import NAdam

__all__ = ["NAdam"]

NAdam.__module__ = __name__
