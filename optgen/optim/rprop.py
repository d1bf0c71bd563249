"""The mirror of torch.optim.rprop."""

from torch import Tensor

from optgen.generated.rprop import Rprop
from optgen.optim.functional import functional

__all__ = ["Rprop", "rprop"]

Rprop.__module__ = __name__


@functional(Rprop, etas=("etaminus", "etaplus"), step_sizes=("step_size_min", "step_size_max"))
def rprop(
    params: list[Tensor],
    grads: list[Tensor],
    prevs: list[Tensor],
    step_sizes: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    capturable: bool = False,
    maximize: bool = False,
    differentiable: bool = False,
    has_complex: bool = False,
    *,
    step_size_min: float,
    step_size_max: float,
    etaminus: float,
    etaplus: float,
) -> None:
    """Take one step of :class:`Rprop` in place, on lists of tensors."""
