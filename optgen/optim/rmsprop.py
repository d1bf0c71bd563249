"""The mirror of torch.optim.rmsprop."""

from torch import Tensor

from optgen.generated.rmsprop import RMSprop
from optgen.optim.functional import functional

__all__ = ["RMSprop", "rmsprop"]

RMSprop.__module__ = __name__


@functional(RMSprop, momentum_buffer="momentum_buffer_list")
def rmsprop(
    params: list[Tensor],
    grads: list[Tensor],
    square_avgs: list[Tensor],
    grad_avgs: list[Tensor],
    momentum_buffer_list: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    maximize: bool = False,
    differentiable: bool = False,
    capturable: bool = False,
    has_complex: bool = False,
    *,
    lr: float | Tensor,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
) -> None:
    """Take one step of :class:`RMSprop` in place, on lists of tensors."""
