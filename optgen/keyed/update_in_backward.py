"""Modules whose parameters a generated optimizer updates while the backward pass runs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from optgen.keyed.backward_hooks import in_backward_optimizer_filter
from optgen.keyed.combined import CombinedOptimizer
from optgen.keyed.fused import FusedOptimizerModule, fused_optimizer_of
from optgen.keyed.in_backward_optimizer import InBackwardOptimizer
from optgen.keyed.keyed_optimizer import KeyedOptimizer
from optgen.runtime.private import compiling


class UpdateInBackward(nn.Module, FusedOptimizerModule):
    """A module that trains in its backward pass: a gradient is used and freed as it is made.

    So the gradients of the model are never all alive: at most those of a bucket are, and what
    autograd itself holds. `fused_optimizer` has state and groups; its `step` ends an iteration, and
    schedulers and warm-up act on it as on any optimizer::

        model = UpdateInBackward(model, AdamW, lr=1e-3)
        scheduler = CosineAnnealingLR(model.fused_optimizer, 1000)
        for inputs, targets in batches:
            loss(model(inputs), targets).backward()
            model.fused_optimizer.step()
            scheduler.step()

    Results are those of `optimizer_class` after the backward pass, bit for bit where its rule is
    elementwise. Parameters that are used several times are updated once, after all their
    gradients. Gradients are not accumulated over passes: a second one before `step` is an error.

    Args:
        module (nn.Module): What to train, after `fully_shard` or with `DistributedDataParallel`
            around it. Modules in it that have a fused optimizer of their own keep it.
        optimizer_class: A class of `optgen.optim`, or of torch's form.
        bucket_bytes (int): How many bytes of gradients may wait to be used by one call; those of
            parameters that ranks share count as a whole. Default: 0, each parameter has its own.
        clip_value (float): The largest magnitude of an element of a gradient; by the norm of all
            nothing can be clipped before all are there. Default: None, no limit.
        groups (iterable): Groups of the module's parameters, as optimizers take them. Default: one
            group of all.
        hyper: Further arguments of the class.

    Raises:
        ValueError: The groups have other parameters than the module, or not all; or what the class
            raises.
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
        inner = fused_optimizer_of(module)
        params = {
            name: param
            for name, param in in_backward_optimizer_filter(self.named_parameters())
            if param.requires_grad
        }
        self._own = InBackwardOptimizer(
            params, optimizer_class, bucket_bytes, clip_value, groups, hyper, module
        )
        self._fused: KeyedOptimizer = self._own
        if inner.optimizers:
            self._fused = CombinedOptimizer([self._own, ("module", inner)])
        self._checked = False

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer of all parameters, those of modules within too, by this module's names."""
        return self._fused

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        if not self._checked and not compiling():
            self._check_parameters()
        return self.module(*args, **kwargs)

    def _check_parameters(self) -> None:
        now: dict[str, Tensor] = dict(self.named_parameters())
        gone = [name for name, param in self._own.params.items() if now.get(name) is not param]
        if gone:
            raise RuntimeError(
                f"{gone[0]} is another parameter than when UpdateInBackward was made, and would "
                "not be updated: make it after what exchanges parameters, such as fully_shard"
            )
        self._checked = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._own.attach(self.module)  # copies of parameters come without hooks
