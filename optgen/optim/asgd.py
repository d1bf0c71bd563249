"""The mirror of torch.optim.asgd."""

from torch import Tensor

from optgen.generated.asgd import ASGD
from optgen.optim.functional import functional

__all__ = ["ASGD", "asgd"]

ASGD.__module__ = __name__


@functional(ASGD)
def asgd(
    params: list[Tensor],
    grads: list[Tensor],
    axs: list[Tensor],
    mus: list[Tensor],
    etas: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    maximize: bool = False,
    differentiable: bool = False,
    capturable: bool = False,
    has_complex: bool = False,
    *,
    lambd: float,
    lr: float | Tensor,
    t0: float,
    alpha: float,
    weight_decay: float,
) -> None:
    """Take one step of :class:`ASGD` in place, on lists of tensors."""
