"""The mirror of torch.optim._adafactor."""

from torch import Tensor

from optgen.generated.adafactor import Adafactor
from optgen.optim.functional import functional

__all__ = ["Adafactor", "adafactor"]

Adafactor.__module__ = "optgen.optim"  # as torch has it


@functional(Adafactor, eps=("eps1", "eps2"))
def adafactor(
    params: list[Tensor],
    grads: list[Tensor],
    row_vars: list[Tensor | None],
    col_vars: list[Tensor | None],
    variances: list[Tensor | None],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    has_complex: bool = False,
    *,
    d: float,
    lr: float | Tensor,
    beta2_decay: float,
    weight_decay: float,
    eps1: float,
    eps2: float,
    maximize: bool,
) -> None:
    """Take one step of :class:`Adafactor` in place, on lists of tensors."""
