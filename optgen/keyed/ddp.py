"""DistributedDataParallel and the backward pass: updates come after the ranks' sums.

Its hooks would come after those that update, which would see the gradients of one rank. So there
are none: a communication hook adds a bucket of gradients up over the ranks and hands them on.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from optgen.keyed.torch_private import leave_gradients


def engines(module: nn.Module) -> Iterator[DistributedDataParallel]:
    """Those that stand around parts of a module, or are it."""
    for each in module.modules():
        if isinstance(each, DistributedDataParallel):
            yield each


def call_when_reduced(engine: DistributedDataParallel, arrived: Callable[[Tensor], None]) -> None:
    """Call `arrived(param)` whenever a parameter's gradient is the mean of all ranks'.

    Raises:
        RuntimeError: The engine has a communication hook already.
    """
    group = engine.process_group

    def reduce(_, bucket):  # type: ignore[no-untyped-def]  # the engine reads annotations
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
