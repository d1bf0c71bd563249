"""The mirror of torch.optim.adamw."""

from optgen.generated.adamw import AdamW

__all__ = ["AdamW"]

AdamW.__module__ = __name__
