"""The mirror of torch.optim.sgd."""

from torch import Tensor

from optgen.generated.sgd import SGD
from optgen.optim.functional import functional

__all__ = ["SGD", "sgd"]

SGD.__module__ = __name__


@functional(SGD, momentum_buffer="momentum_buffer_list")
def sgd(
    params: list[Tensor],
    d_p_list: list[Tensor],
    momentum_buffer_list: list[Tensor | None],
    has_sparse_grad: bool = False,
    foreach: bool | None = None,
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """Take one step of :class:`SGD` in place, on lists; new momentum buffers go into their list."""
