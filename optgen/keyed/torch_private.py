"""Every private name of torch that keyed optimizers use, and its tensors spread over ranks.

Nothing is imported to ask what a tensor is: the module of its class is there if the tensor is.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.utils.hooks import RemovableHandle

from optgen.runtime.private import compiling


def _isinstance(value: object, module: str, name: str) -> bool:
    kind: Any = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def is_sharded_tensor(value: object) -> bool:
    """Tell whether this is a ShardedTensor, the older form of a tensor spread over ranks."""
    return _isinstance(value, "torch.distributed._shard.sharded_tensor", "ShardedTensor")


def is_dtensor(value: object) -> bool:
    """Tell whether this is a DTensor."""
    return _isinstance(value, "torch.distributed.tensor", "DTensor")


def after_backward(callback: Callable[[], None]) -> None:
    """Call something when the backward pass that is running has come to its end."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def backward_is_compiled() -> bool:
    """Tell whether compiled autograd runs this backward pass, or is just reading it."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return compiling() or getattr(module, "in_compiled_autograd_region", False)


def hand_to_ddp(param: Tensor, handle: RemovableHandle) -> bool:
    """Let DistributedDataParallel know of a hook that updates a parameter in the backward pass.

    It removes such hooks and calls the optimizers itself, when gradients are those of all ranks.
    The list of them stands in a module that takes long to import, and warns: so only where there
    are other ranks. Tells whether it is on the list.
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


def leave_gradients(engine: torch.nn.parallel.DistributedDataParallel) -> None:
    """Have an engine not give parameters the gradients that its communication hook has used."""
    cast(Any, engine.reducer)._set_optimizer_in_backward()
