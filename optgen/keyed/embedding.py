"""Embedding tables whose touched rows are updated in the backward pass."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from optgen.generated.row_wise_adagrad import RowWiseAdagrad
from optgen.keyed.fused import FusedOptimizerModule
from optgen.keyed.in_backward_optimizer import InBackwardOptimizer
from optgen.keyed.keyed_optimizer import KeyedOptimizer
from optgen.runtime.rule import Rule


class _Table(FusedOptimizerModule, nn.Module):
    """Base of embedding tables with an optimizer that updates in the backward pass."""

    def __init__(
        self,
        *args: Any,
        optimizer_class: Callable[..., Optimizer] = RowWiseAdagrad,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{**kwargs, "sparse": True})
        self._fused_optimizer = _make_optimizer(self, optimizer_class, optimizer_kwargs)

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer of the table, whose parameter is named "weight"."""
        return self._fused_optimizer

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._fused_optimizer.attach()  # copying a table drops its hooks


class FusedEmbedding(_Table, nn.Embedding):
    """An `nn.Embedding` whose touched rows are updated in the backward pass.

    The gradient of the table is sparse: it holds the rows that were looked up. On the CPU one
    kernel sums the gradients of each row and updates the row in place. Then the gradient is freed.
    Other rows and their state are unchanged. The results equal those of `nn.Embedding` with
    `sparse=True` and a step of the same optimizer after the backward pass. Call
    `fused_optimizer.step()` after each backward pass: it updates nothing, but without it a second
    gradient is an error.

    Args:
        args, kwargs: Those of `nn.Embedding`; `sparse` is always True.
        optimizer_class: An optimizer that takes sparse gradients: `RowWiseAdagrad` (the default),
            or `Adagrad`, `SparseAdam` or `SGD` of `optgen.optim`.
        optimizer_kwargs (Mapping): Further arguments of the class.

    Raises:
        ValueError: The optimizer takes no sparse gradients.
    """


class FusedEmbeddingBag(_Table, nn.EmbeddingBag):
    """An `nn.EmbeddingBag` whose touched rows are updated in the backward pass.

    It works as `FusedEmbedding` does, and has the arguments of `nn.EmbeddingBag`. Its mode is "sum"
    or "mean".
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.mode == "max":
            raise ValueError('mode "max" has no sparse gradient: choose "sum" or "mean"')


def _make_optimizer(
    table: nn.Module,
    optimizer_class: Callable[..., Optimizer],
    optimizer_kwargs: Mapping[str, Any] | None,
) -> InBackwardOptimizer:
    rule = getattr(optimizer_class, "rule", None)
    if isinstance(rule, Rule) and rule.gradient == "dense":
        raise ValueError(
            f"{getattr(optimizer_class, '__name__', optimizer_class)} takes no sparse gradients; "
            "RowWiseAdagrad, Adagrad, SparseAdam and SGD do, and rules with gradient='rows'"
        )
    params = {name: param for name, param in table.named_parameters() if param.requires_grad}
    return InBackwardOptimizer(params, optimizer_class, hyper=optimizer_kwargs)
