"""The mirror of torch.optim.sparse_adam."""

from torch import Tensor

from optgen.generated.sparse_adam import SparseAdam
from optgen.optim.functional import functional

__all__ = ["SparseAdam", "sparse_adam"]

SparseAdam.__module__ = __name__


@functional(SparseAdam, betas=("beta1", "beta2"))
def sparse_adam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    state_steps: list[int],
    *,
    eps: float,
    beta1: float,
    beta2: float,
    lr: float,
    maximize: bool,
) -> None:
    """Take one step of :class:`SparseAdam` in place; `state_steps` include this step already."""
