"""What torchrec has under this name: a function that is called as its module is."""

from optgen.keyed.backward_hooks import apply_optimizer_in_backward

__all__ = ["apply_optimizer_in_backward"]
