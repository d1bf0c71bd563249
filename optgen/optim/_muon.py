"""The mirror of torch.optim._muon."""

from torch import Tensor

from optgen.generated.muon import Muon
from optgen.optim.functional import functional

__all__ = ["Muon", "muon"]

Muon.__module__ = "optgen.optim"  # as torch has it


@functional(Muon, momentum_buffer="muon_momentum_bufs")
def muon(
    params: list[Tensor],
    grads: list[Tensor],
    muon_momentum_bufs: list[Tensor],
    *,
    foreach: bool | None = None,
    lr: float,
    weight_decay: float,
    momentum: float,
    nesterov: bool,
    ns_coefficients: tuple[float, float, float],
    ns_steps: int,
    eps: float,
    adjust_lr_fn: str | None,
    has_complex: bool,
) -> None:
    """Take one step of :class:`Muon` in place, on lists of tensors."""
