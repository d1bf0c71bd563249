"""Modules whose parameters are updated in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from optgen.generated.row_wise_adagrad import RowWiseAdagrad
from optgen.keyed.apply_optimizer_in_backward import backward_pass, in_backward_optimizer_filter
from optgen.keyed.fused import FusedOptimizerModule, fused_optimizer_of
from optgen.keyed.in_backward_optimizer import InBackwardOptimizer
from optgen.keyed.keyed import CombinedOptimizer, KeyedOptimizer
from optgen.runtime.rule import Rule
from optgen.runtime.torch_private import compiling


class UpdateInBackward(nn.Module, FusedOptimizerModule):
    """A module whose parameters are updated in the backward pass, when gradients are ready.

    Each group's parameters are divided into buckets. When all gradients of a bucket are ready, its
    parameters are updated, and its gradients are freed. By default a bucket is one parameter, so
    one gradient is alive at a time, besides those that autograd holds. A larger bucket waits for
    its last gradient, or for the end of the pass. Several buckets may wait at once if there are
    several groups, or if gradients do not come from the last parameter to the first.

    `fused_optimizer` has the state and the groups. Its `step` ends an iteration, and schedulers and
    warm-up work with it as with any optimizer::

        model = UpdateInBackward(model, AdamW, lr=1e-3)
        scheduler = CosineAnnealingLR(model.fused_optimizer, 1000)
        for inputs, targets in batches:
            loss(model(inputs), targets).backward()
            model.fused_optimizer.step()
            scheduler.step()

    The results are the same as if the optimizer stepped after the backward pass. They are bitwise
    equal if its rule is elementwise. A parameter that is used several times is updated once, with
    the sum of its gradients. Gradients are not accumulated over passes: a second pass before `step`
    is an error. If a pass fails, the parameters that it has reached stay updated; the next forward
    pass and `step` are errors, until `zero_grad` accepts these weights.

    Args:
        module (nn.Module): The module to train, after `fully_shard` or inside
            `DistributedDataParallel`. Submodules with their own fused optimizer keep it.
        optimizer_class: A class of `optgen.optim`, or one with torch's interface.
        bucket_bytes (int): The most bytes of gradients that may wait for one update. Sharded
            parameters count with their full size. Default: 0, one parameter at a time.
        clip_value (float): Elements of gradients are clipped to this magnitude. Clipping by the
            norm of all gradients is impossible here. Default: None, no clipping.
        groups (iterable): Groups of the module's parameters, as optimizers take them. Default: one
            group.
        hyper: Further arguments of the class.

    Raises:
        ValueError: The groups have other parameters than the module, or lack some; or the class
            refuses its arguments.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: Callable[..., Optimizer],
        *,
        bucket_bytes: int = 0,
        clip_value: float | None = None,
        groups: Iterable[Mapping[str, Any]] | None = None,
        **hyper: Any,
    ) -> None:
        super().__init__()
        self.module = module
        submodule_optimizer = fused_optimizer_of(module)
        params = {
            name: param
            for name, param in in_backward_optimizer_filter(self.named_parameters())
            if param.requires_grad
        }
        self._own_optimizer = InBackwardOptimizer(
            params, optimizer_class, bucket_bytes, clip_value, groups, hyper, module
        )
        self._fused_optimizer: KeyedOptimizer = self._own_optimizer
        if submodule_optimizer.optimizers:
            self._fused_optimizer = CombinedOptimizer(
                [self._own_optimizer, ("module", submodule_optimizer)]
            )
        self._params_checked = False

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer of all parameters, by their names in this module.

        It combines this module's optimizer with the fused optimizers of submodules.
        """
        return self._fused_optimizer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        if not compiling():
            if not self._params_checked:
                self._check_parameters()
            if torch.is_grad_enabled() and backward_pass() == -1:  # no checkpoint computes again
                self._own_optimizer.check_last_pass()
        return self.module(*args, **kwargs)

    def _check_parameters(self) -> None:
        current: dict[str, Tensor] = dict(self.named_parameters())
        replaced = [
            name
            for name, param in self._own_optimizer.params.items()
            if current.get(name) is not param
        ]
        if replaced:
            raise RuntimeError(
                f"{replaced[0]} is another parameter than when UpdateInBackward was made, and "
                "would not be updated: make it after calls that replace parameters, such as "
                "fully_shard"
            )
        self._params_checked = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._own_optimizer.attach(self.module)  # copying parameters drops their hooks


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
