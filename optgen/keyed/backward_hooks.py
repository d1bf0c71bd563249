"""Register hooks that update a parameter in the backward pass, when its gradient is ready."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, distributed
from torch.optim import Optimizer

from optgen.keyed.torch_private import backward_is_compiled, register_with_ddp


class HasStep(Protocol):
    """Object that takes a step with the gradient of one parameter."""

    def step(self) -> Any: ...


_MARK_ATTRIBUTES = ("_in_backward_optimizers", "_optimizer_classes", "_optimizer_kwargs")


def mark(
    param: Any,
    optimizer: HasStep,
    optimizer_class: Callable[..., Optimizer],
    optimizer_kwargs: dict[str, Any],
) -> bool:
    """Record on a parameter that backward passes update it; return whether it was marked before."""
    marked_before = hasattr(param, "_in_backward_optimizers")
    if not marked_before:
        for name in _MARK_ATTRIBUTES:
            setattr(param, name, [])
    param._in_backward_optimizers.append(optimizer)
    param._optimizer_classes.append(optimizer_class)
    param._optimizer_kwargs.append(optimizer_kwargs)
    return marked_before


def unmark(param: Tensor) -> None:
    """Remove the marks, which copies and pickles of a parameter inherit."""
    for name in _MARK_ATTRIBUTES:
        vars(param).pop(name, None)


def register_update_hook(param: Tensor, update: Callable[[Any], None]) -> None:
    """Call `update(param)` whenever a backward pass has accumulated a parameter's gradient."""

    def hook(param: Tensor) -> None:
        _check_backward_pass(is_known_to_ddp)
        update(param)

    handle = param.register_post_accumulate_grad_hook(hook)
    is_known_to_ddp = register_with_ddp(param, handle)


def _check_backward_pass(is_known_to_ddp: bool) -> None:
    """Raise a RuntimeError in a backward pass whose gradients may be wrong or cannot be used."""
    if backward_is_compiled():
        raise RuntimeError(
            "an update in the backward pass cannot be captured: use torch.compile for the model, "
            "and no compiled autograd around its backward pass"
        )
    if not is_known_to_ddp and distributed.is_available() and distributed.is_initialized():
        raise RuntimeError(
            "the update in the backward pass was set up before the process group existed, so "
            "DistributedDataParallel does not know of it, and gradients might be of one rank only; "
            "call init_process_group first"
        )
