"""The mirror of torch.optim.adagrad."""

from torch import Tensor

from optgen.generated.adagrad import Adagrad
from optgen.optim.functional import functional

__all__ = ["Adagrad", "adagrad"]

Adagrad.__module__ = __name__


@functional(Adagrad, sum="state_sums")
def adagrad(
    params: list[Tensor],
    grads: list[Tensor],
    state_sums: list[Tensor],
    state_steps: list[Tensor],
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    has_sparse_grad: bool = False,
    foreach: bool | None = None,
    differentiable: bool = False,
    has_complex: bool = False,
    *,
    lr: float | Tensor,
    weight_decay: float,
    lr_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    """Take one step of :class:`Adagrad` in place, on lists of tensors."""
