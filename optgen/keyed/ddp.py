"""Update parameters in the backward pass of DistributedDataParallel, after gradients are reduced.

Gradient hooks of parameters run before DDP's reduction, and would see the gradients of one rank.
So a communication hook is used instead: it averages a bucket of gradients over the ranks, then
calls back for each parameter.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from optgen.keyed.torch_private import leave_gradients


def ddp_modules(module: nn.Module) -> Iterator[DistributedDataParallel]:
    """Yield every DistributedDataParallel in a module tree, the root included."""
    for each in module.modules():
        if isinstance(each, DistributedDataParallel):
            yield each


def call_when_reduced(engine: DistributedDataParallel, arrived: Callable[[Tensor], None]) -> None:
    """Call `arrived(param)` after each reduction, when `param.grad` is the mean over all ranks.

    Raises:
        RuntimeError: The engine already has a communication hook.
    """
    group = engine.process_group

    def reduce(_, bucket):  # type: ignore[no-untyped-def]  # the engine checks annotations
        buffer = bucket.buffer().div_(group.size())
        distributed.all_reduce(buffer, group=group)
        for param, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
            param.grad = grad
            arrived(param)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    engine.register_comm_hook(None, reduce)
    leave_gradients(engine)
