"""Wrap the private names of torch that keyed optimizers use, and recognize sharded tensors.

Type checks import nothing: if a tensor of a class exists, the module of the class is loaded.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.utils.hooks import RemovableHandle

from optgen.runtime.torch_private import compiling


def _isinstance(value: object, module: str, name: str) -> bool:
    cls: Any = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)


def is_sharded_tensor(value: object) -> bool:
    """Tell whether a value is a ShardedTensor, which is older than DTensor."""
    return _isinstance(value, "torch.distributed._shard.sharded_tensor", "ShardedTensor")


def is_dtensor(value: object) -> bool:
    """Tell whether a value is a DTensor."""
    return _isinstance(value, "torch.distributed.tensor", "DTensor")


def after_backward(callback: Callable[[], None]) -> None:
    """Call a function at the end of the current backward pass."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def backward_pass() -> int:
    """Return the number of the backward pass that runs in this thread; -1 outside of a pass."""
    return torch._C._current_graph_task_id()


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
