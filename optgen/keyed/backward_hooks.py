"""Update single parameters in the backward pass, by hooks that run when a gradient is ready."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from optgen.keyed.torch_private import backward_is_compiled, hand_to_ddp


class HasStep(Protocol):
    """Object that takes a step with the gradient of one parameter."""

    def step(self) -> Any: ...


def apply_optimizer_in_backward(
    optimizer_class: Callable[..., Optimizer],
    params: Iterable[nn.Parameter],
    optimizer_kwargs: dict[str, Any],
    register_hook: bool = True,
) -> None:
    """Give each parameter an optimizer that steps in the backward pass and drops the gradient.

    A parameter keeps its optimizers in `_in_backward_optimizers`, and their classes and arguments
    in `_optimizer_classes` and `_optimizer_kwargs`, where torch's engines look for them. Another
    call adds another optimizer, which steps after the first. A parameter that is used several times
    steps once, with the sum of its gradients.

    Args:
        optimizer_class: Makes an optimizer from a list of one parameter.
        params: The parameters. Call `fully_shard` before, and `DistributedDataParallel` after; the
            latter then takes the steps itself, for which torch's optimizers need an accelerator.
        optimizer_kwargs: Further arguments of the class.
        register_hook: Whether the backward pass takes the steps. Default: True. False leaves the
            steps to an engine.
    """
    for param in params:
        optimizer = optimizer_class([param], **optimizer_kwargs)
        known = mark(param, optimizer, optimizer_class, optimizer_kwargs)
        if register_hook and not known:
            register_update_hook(param, _step_all)


def in_backward_optimizer_filter(
    named_parameters: Iterable[tuple[str, nn.Parameter]], include: bool = False
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters that are not updated in a backward pass; with `include`, the others."""
    for name, param in named_parameters:
        if hasattr(param, "_in_backward_optimizers") == include:
            yield name, param


_MARKS = ("_in_backward_optimizers", "_optimizer_classes", "_optimizer_kwargs")


def mark(
    param: Any, optimizer: HasStep, kind: Callable[..., Optimizer], options: dict[str, Any]
) -> bool:
    """Record on a parameter that a backward pass updates it; return whether one already did."""
    known = hasattr(param, "_in_backward_optimizers")
    if not known:
        for name in _MARKS:
            setattr(param, name, [])
    param._in_backward_optimizers.append(optimizer)
    param._optimizer_classes.append(kind)
    param._optimizer_kwargs.append(options)
    return known


def unmark(param: Tensor) -> None:
    """Remove the record, which copies and pickles of a parameter inherit."""
    for name in _MARKS:
        vars(param).pop(name, None)


def register_update_hook(param: Tensor, update: Callable[[Any], None]) -> None:
    """Call `update(param)` whenever a backward pass has accumulated a parameter's gradient."""

    def hook(param: Tensor) -> None:
        check_pass(ddp_knows)
        update(param)

    handle = param.register_post_accumulate_grad_hook(hook)
    ddp_knows = hand_to_ddp(param, handle)


def check_pass(ddp_knows: bool) -> None:
    """Raise a RuntimeError in a backward pass whose gradients may be wrong or cannot be used."""
    if backward_is_compiled():
        raise RuntimeError(
            "an update in the backward pass cannot be captured: use torch.compile for the model, "
            "and no compiled autograd around its backward pass"
        )
    if not ddp_knows and distributed.is_available() and distributed.is_initialized():
        raise RuntimeError(
            "the update in the backward pass was set up before the process group existed, so "
            "engines do not know of it, and gradients might be of one rank only; "
            "call init_process_group first"
        )


def _step_all(param: Any) -> None:
    for optimizer in param._in_backward_optimizers:
        optimizer.step()
    param.grad = None
