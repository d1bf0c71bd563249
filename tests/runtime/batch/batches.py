"""Parameters with gradients, an optimizer that has taken a step, and the batch of its next step."""

import torch
from torch import Tensor

from optgen.optim import Adam
from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.gather import gather_batches


def give_gradients(params: list[Tensor]) -> None:
    for param in params:
        param.grad = torch.ones_like(param)


def optimizer_after_a_step() -> tuple[Adam, list[Tensor]]:
    """Return an optimizer that has taken a step, and its parameters."""
    params: list[Tensor] = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(3)]
    optimizer = Adam(params, foreach=False)
    give_gradients(params)
    optimizer.step()
    return optimizer, params


def only_batch(optimizer: Adam) -> Batch:
    """Return the only batch of the next step."""
    (batch,) = gather_batches(optimizer)
    return batch


def parameter_with_gradient() -> torch.nn.Parameter:
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    return param
