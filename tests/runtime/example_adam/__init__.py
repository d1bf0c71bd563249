"""Adam, written by hand in the form the generator writes it, until it does."""

from torch import Tensor
from torch.optim.optimizer import ParamsT

from optgen.runtime import GeneratedOptimizer, Rule, State


class Adam(GeneratedOptimizer):
    """Adam, as torch.optim.Adam."""

    rule = Rule(
        name="adam",
        states=(
            State("exp_avg"),
            State("exp_avg_sq"),
            State("max_exp_avg_sq", when="amsgrad"),
        ),
        hypers=(
            "lr",
            "betas",
            "eps",
            "weight_decay",
            "amsgrad",
            "decoupled_weight_decay",
            "maximize",
        ),
        sparse_hint=", please consider SparseAdam instead",
        backfill=(
            ("amsgrad", False),
            ("maximize", False),
            ("foreach", None),
            ("capturable", False),
            ("differentiable", False),
            ("fused", None),
            ("decoupled_weight_decay", False),
        ),
    )
    lowerings = __name__

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not 0.0 <= lr:
            raise ValueError(f"Invalid learning rate: {lr}")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)
