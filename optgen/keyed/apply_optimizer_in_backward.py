"""What torchrec has under this name: a function that is called as its module is."""

from optgen.keyed.in_backward import apply_optimizer_in_backward

__all__ = ["apply_optimizer_in_backward"]
