"""Parameters that are updated in the backward pass, as soon as their gradient is known."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from optgen.keyed.torch_private import backward_is_compiled, hand_to_ddp


class HasStep(Protocol):
    """What takes a step with the gradient of one parameter."""

    def step(self) -> Any: ...


def apply_optimizer_in_backward(
    optimizer_class: Callable[..., Optimizer],
    params: Iterable[nn.Parameter],
    optimizer_kwargs: dict[str, Any],
    register_hook: bool = True,
) -> None:
    """Give each parameter an optimizer that steps in the backward pass, and drops the gradient.

    A parameter keeps its optimizers in `_in_backward_optimizers`, and what they were made of in
    `_optimizer_classes` and `_optimizer_kwargs`, where torch's engines look for them. Another call
    adds another optimizer, which steps after the first. The gradient of a parameter that is used
    several times is the sum of all uses, and it steps once.

    Args:
        optimizer_class: Makes an optimizer of a list of one parameter.
        params: The parameters; call `fully_shard` before. `DistributedDataParallel` comes after,
            and takes the steps itself; torch's needs an accelerator for that.
        optimizer_kwargs: Further arguments of the class.
        register_hook: Whether the backward pass takes the steps. Default: True; False leaves it to
            an engine.
    """
    for param in params:
        optimizer = optimizer_class([param], **optimizer_kwargs)
        known = mark(param, optimizer, optimizer_class, optimizer_kwargs)
        if register_hook and not known:
            register_update_hook(param, _step_all)


def in_backward_optimizer_filter(
    named_parameters: Iterable[tuple[str, nn.Parameter]], include: bool = False
) -> Iterator[tuple[str, nn.Parameter]]:
    """The named parameters that no backward pass updates, or with `include` those that one does."""
    for name, param in named_parameters:
        if hasattr(param, "_in_backward_optimizers") == include:
            yield name, param


_MARKS = ("_in_backward_optimizers", "_optimizer_classes", "_optimizer_kwargs")


def mark(
    param: Any, optimizer: HasStep, kind: Callable[..., Optimizer], options: dict[str, Any]
) -> bool:
    """Tell everybody that a backward pass updates a parameter; tell whether one did already."""
    known = hasattr(param, "_in_backward_optimizers")
    if not known:
        for name in _MARKS:
            setattr(param, name, [])
    param._in_backward_optimizers.append(optimizer)
    param._optimizer_classes.append(kind)
    param._optimizer_kwargs.append(options)
    return known


def unmark(param: Tensor) -> None:
    """Forget what a copy or a pickle of a parameter says."""
    for name in _MARKS:
        vars(param).pop(name, None)


def register_update_hook(param: Tensor, update: Callable[[Any], None]) -> None:
    """Call `update(param)` whenever a backward pass has made the gradient of a parameter."""

    def hook(param: Tensor) -> None:
        check_pass(ddp_knows)
        update(param)

    handle = param.register_post_accumulate_grad_hook(hook)
    ddp_knows = hand_to_ddp(param, handle)


def check_pass(ddp_knows: bool) -> None:
    """Raise a RuntimeError in a backward pass whose gradients may be wrong."""
    if backward_is_compiled():
        raise RuntimeError(
            "an update in the backward pass cannot be captured: use torch.compile for the model, "
            "and no compiled autograd around its backward pass"
        )
    if not ddp_knows and distributed.is_available() and distributed.is_initialized():
        raise RuntimeError(
            "the parameters were prepared for an update in the backward pass before the process "
            "group was there: an engine would not know, and gradients might be of one rank only; "
            "call init_process_group first"
        )


def _step_all(param: Any) -> None:
    for optimizer in param._in_backward_optimizers:
        optimizer.step()
    param.grad = None
