"""Update parameters in the backward pass of DistributedDataParallel, after gradients are reduced.

Gradient hooks of parameters run before DDP's reduction, and would see the gradients of one rank.
So DDP gets a communication hook instead. The hook averages one of DDP's buckets of gradients over
the ranks, then calls a function for each parameter of the bucket.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from optgen.keyed.torch_private import stop_gradient_writes


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
