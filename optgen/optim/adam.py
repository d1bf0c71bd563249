"""The mirror of torch.optim.adam."""

from optgen.generated.adam import Adam

__all__ = ["Adam"]

Adam.__module__ = __name__
