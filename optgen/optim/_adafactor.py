"""The mirror of torch.optim._adafactor."""

from optgen.generated.adafactor import Adafactor

__all__ = ["Adafactor"]

Adafactor.__module__ = "optgen.optim"  # as torch has it
