"""The mirror of torch.optim.adamax."""

from torch import Tensor

from optgen.generated.adamax import Adamax
from optgen.optim.functional import functional

__all__ = ["Adamax", "adamax"]

Adamax.__module__ = __name__


@functional(Adamax, betas=("beta1", "beta2"))
def adamax(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_infs: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    maximize: bool = False,
    differentiable: bool = False,
    capturable: bool = False,
    has_complex: bool = False,
    *,
    eps: float,
    beta1: float,
    beta2: float,
    lr: float | Tensor,
    weight_decay: float,
) -> None:
    """Take one step of :class:`Adamax` in place, on lists of tensors."""
