"""The mirror of torch.optim.nadam."""

from torch import Tensor

from optgen.generated.nadam import NAdam
from optgen.optim.functional import functional

__all__ = ["NAdam", "nadam"]

NAdam.__module__ = __name__


@functional(NAdam, betas=("beta1", "beta2"))
def nadam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    mu_products: list[Tensor],
    state_steps: list[Tensor],
    decoupled_weight_decay: bool = False,
    foreach: bool | None = None,
    capturable: bool = False,
    differentiable: bool = False,
    has_complex: bool = False,
    maximize: bool = False,
    *,
    beta1: float,
    beta2: float,
    lr: float | Tensor,
    weight_decay: float,
    momentum_decay: float,
    eps: float,
) -> None:
    """Take one step of :class:`NAdam` in place, on lists of tensors."""
