"""Give single parameters optimizers that step in the backward pass, and the hooks for that.

torchrec has a module of this name, which holds a function of the same name. Gradient hooks of
parameters run before the reduction of DistributedDataParallel, and would see the gradients of one
rank. So DDP gets a communication hook instead. The hook averages one of DDP's buckets of gradients
over the ranks, then calls a function for each parameter of the bucket.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Protocol, cast

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from optgen.runtime.torch_private import compiling

_BEGIN_BACKWARD = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}


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


def ddp_modules(module: nn.Module) -> Iterator[DistributedDataParallel]:
    """Yield every DistributedDataParallel in a module tree, the root included."""
    for submodule in module.modules():
        if isinstance(submodule, DistributedDataParallel):
            yield submodule


def call_when_reduced(ddp: DistributedDataParallel, on_ready: Callable[[Tensor], None]) -> None:
    """Call `on_ready(param)` after each reduction, when `param.grad` is the mean over all ranks.

    Raises:
        RuntimeError: `ddp` already has a communication hook.
    """
    group = ddp.process_group

    def reduce(_, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations
        buffer = bucket.buffer().div_(group.size())
        distributed.all_reduce(buffer, group=group)
        for param, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
            param.grad = grad
            on_ready(param)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    ddp.register_comm_hook(None, reduce)
    stop_gradient_writes(ddp)


def after_backward(callback: Callable[[], None]) -> None:
    """Call a function at the end of the current backward pass."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def backward_pass() -> int:
    """Return the number of the backward pass that runs in this thread; -1 outside of a pass."""
    return torch._C._current_graph_task_id()


def backward_is_nested() -> bool:
    """Tell whether the backward method of a function has begun the backward pass of this thread.

    A backward method that takes gradients of the pass it belongs to (FSDP2's does) begins none.
    """
    has_begun = False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        has_begun |= frame.f_code in _BEGIN_BACKWARD
        if has_begun and frame.f_code is BackwardCFunction.apply.__code__:
            return True
        frame = frame.f_back
    return False


def backward_is_compiled() -> bool:
    """Tell whether compiled autograd runs or traces the current backward pass."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return compiling() or getattr(module, "in_compiled_autograd_region", False)


def register_with_ddp(param: Tensor, handle: RemovableHandle) -> bool:
    """Register the handle of a hook that updates a parameter, so that DDP can remove the hook.

    DistributedDataParallel removes such hooks and calls the optimizers itself, after it has reduced
    the gradients. The handle is registered only if a process group exists, because the registry is
    in a module that warns and is slow to import.

    Returns:
        Whether the handle was registered.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim.apply_optimizer_in_backward import (
            param_to_optim_hook_handle_map,
        )
    param_to_optim_hook_handle_map.setdefault(param, []).append(handle)
    return True


def stop_gradient_writes(ddp: torch.nn.parallel.DistributedDataParallel) -> None:
    """Stop DDP from writing `param.grad` after its communication hook has used it."""
    cast(Any, ddp.reducer)._set_optimizer_in_backward()
