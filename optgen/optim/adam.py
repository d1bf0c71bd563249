"""The mirror of torch.optim.adam."""

from torch import Tensor

from optgen.generated.adam import Adam
from optgen.optim.functional import functional

__all__ = ["Adam", "adam"]

Adam.__module__ = __name__


@functional(Adam, betas=("beta1", "beta2"))
def adam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    capturable: bool = False,
    differentiable: bool = False,
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    has_complex: bool = False,
    decoupled_weight_decay: bool = False,
    *,
    amsgrad: bool,
    beta1: float | Tensor,
    beta2: float | Tensor,
    lr: float | Tensor,
    weight_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    """Take one step of :class:`Adam` in place, on lists of tensors."""
