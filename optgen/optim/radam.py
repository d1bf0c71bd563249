"""The mirror of torch.optim.radam."""

from torch import Tensor

from optgen.generated.radam import RAdam
from optgen.optim.functional import functional

__all__ = ["RAdam", "radam"]

RAdam.__module__ = __name__


@functional(RAdam, betas=("beta1", "beta2"))
def radam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    decoupled_weight_decay: bool = False,
    foreach: bool | None = None,
    differentiable: bool = False,
    capturable: bool = False,
    has_complex: bool = False,
    maximize: bool = False,
    *,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
) -> None:
    """Take one step of :class:`RAdam` in place, on lists of tensors."""
