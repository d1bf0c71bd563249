"""The mirror of torch.optim.adamw."""

from torch import Tensor

from optgen.generated.adamw import AdamW
from optgen.optim.functional import functional

__all__ = ["AdamW", "adamw"]

AdamW.__module__ = __name__


@functional(AdamW, betas=("beta1", "beta2"))
def adamw(
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
    *,
    amsgrad: bool,
    beta1: float | Tensor,
    beta2: float | Tensor,
    lr: float | Tensor,
    weight_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    """Take one step of :class:`AdamW` in place, on lists of tensors."""
