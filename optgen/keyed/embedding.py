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
    """A table, and the optimizer of its rows."""

    def __init__(
        self,
        *args: Any,
        optimizer_class: Callable[..., Optimizer] = RowWiseAdagrad,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{**kwargs, "sparse": True})
        self._own = _optimizer(self, optimizer_class, optimizer_kwargs)

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer of the table, which it knows as "weight"."""
        return self._own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._own.attach()  # a copy of the table comes without hooks


class FusedEmbedding(_Table, nn.Embedding):
    """An `nn.Embedding` whose touched rows are updated in the backward pass.

    The gradient of the table is never dense: it names the rows that were looked up. On the CPU one
    kernel adds up what stands for one row and updates the row where it lies; then the gradient is
    freed. Other rows and their state stay as they are, as with `sparse=True` and the same optimizer
    after the backward pass; `fused_optimizer.step()` ends an iteration.

    Args:
        args, kwargs: Those of `nn.Embedding`; `sparse` is True.
        optimizer_class: An optimizer that takes sparse gradients: `RowWiseAdagrad` (the default),
            or `Adagrad`, `SparseAdam` or `SGD` of `optgen.optim`.
        optimizer_kwargs (Mapping): Its further arguments.

    Raises:
        ValueError: The optimizer takes no sparse gradients.
    """


class FusedEmbeddingBag(_Table, nn.EmbeddingBag):
    """An `nn.EmbeddingBag` whose touched rows are updated in the backward pass.

    As `FusedEmbedding`, but with the arguments of `nn.EmbeddingBag`; modes "sum" and "mean".
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.mode == "max":
            raise ValueError('mode "max" has no sparse gradient: choose "sum" or "mean"')


def _optimizer(
    table: nn.Module, kind: Callable[..., Optimizer], options: Mapping[str, Any] | None
) -> InBackwardOptimizer:
    rule = getattr(kind, "rule", None)
    if isinstance(rule, Rule) and rule.gradient == "dense":
        raise ValueError(
            f"{getattr(kind, '__name__', kind)} takes no sparse gradients; RowWiseAdagrad, "
            "Adagrad, SparseAdam and SGD do, and rules with gradient='rows'"
        )
    params = {name: param for name, param in table.named_parameters() if param.requires_grad}
    return InBackwardOptimizer(params, kind, hyper=options)
