"""The mirror of torch.optim.rmsprop."""

from optgen.generated.rmsprop import RMSprop

__all__ = ["RMSprop"]

RMSprop.__module__ = __name__
