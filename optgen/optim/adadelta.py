"""The mirror of torch.optim.adadelta."""

from torch import Tensor

from optgen.generated.adadelta import Adadelta
from optgen.optim.functional import functional

__all__ = ["Adadelta", "adadelta"]

Adadelta.__module__ = __name__


@functional(Adadelta)
def adadelta(
    params: list[Tensor],
    grads: list[Tensor],
    square_avgs: list[Tensor],
    acc_deltas: list[Tensor],
    state_steps: list[Tensor],
    capturable: bool = False,
    foreach: bool | None = None,
    differentiable: bool = False,
    has_complex: bool = False,
    *,
    lr: float | Tensor,
    rho: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """Take one step of :class:`Adadelta` in place, on lists of tensors."""
