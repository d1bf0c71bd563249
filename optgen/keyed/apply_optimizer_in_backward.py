"""Provide torchrec's module of this name, which holds a function of the same name."""

from optgen.keyed.backward_hooks import apply_optimizer_in_backward

__all__ = ["apply_optimizer_in_backward"]
