"""Give single parameters optimizers that step in the backward pass.

torchrec has a module of this name, which holds a function of the same name.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from optgen.keyed.backward_hooks import mark, register_update_hook


def apply_optimizer_in_backward(
    optimizer_class: Callable[..., Optimizer],
    params: Iterable[nn.Parameter],
    optimizer_kwargs: dict[str, Any],
    register_hook: bool = True,
) -> None:
    """Give each parameter an optimizer that steps in the backward pass and drops the gradient.

    A parameter keeps its optimizers in `_in_backward_optimizers`, and their classes and arguments
    in `_optimizer_classes` and `_optimizer_kwargs`, where torch's data-parallel wrappers look for
    them. Another call adds another optimizer, which steps after the first. A parameter that is used
    several times steps once, with the sum of its gradients. Each pass takes a step, as with torch's
    function: nothing tells where an iteration ends, so gradients of several passes are not summed.

    Args:
        optimizer_class: Makes an optimizer from a list of one parameter.
        params: The parameters. Call `fully_shard` before, and `DistributedDataParallel` after. The
            latter then takes the steps itself; torch's optimizers need an accelerator for that.
        optimizer_kwargs: Further arguments of the class.
        register_hook: Whether the backward pass takes the steps. Default: True. False leaves the
            steps to such a wrapper.
    """
    for param in params:
        optimizer = optimizer_class([param], **optimizer_kwargs)
        marked_before = mark(param, optimizer, optimizer_class, optimizer_kwargs)
        if register_hook and not marked_before:
            register_update_hook(param, _step_optimizers)


def in_backward_optimizer_filter(
    named_parameters: Iterable[tuple[str, nn.Parameter]], include: bool = False
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters that no backward pass updates; with `include`, the updated ones."""
    for name, param in named_parameters:
        if hasattr(param, "_in_backward_optimizers") == include:
            yield name, param


def _step_optimizers(param: Any) -> None:
    for optimizer in param._in_backward_optimizers:
        optimizer.step()
    param.grad = None
