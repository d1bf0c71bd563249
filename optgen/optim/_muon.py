"""The mirror of torch.optim._muon."""

from optgen.generated.muon import Muon

__all__ = ["Muon"]

Muon.__module__ = "optgen.optim"  # as torch has it
