"""Train StochasticAdamW, whose rule rounds at random."""

from __future__ import annotations

from typing import Any

import torch
from spec_files import spec_file
from torch import Tensor

import optgen
from optgen import use_lowering

STOCHASTIC_ADAMW = spec_file("stochastic_adamw")


def param_after_training(
    start: Tensor, grads: list[Tensor], lowering: str, **hypers: Any
) -> Tensor:
    """Return StochasticAdamW's parameter after one step for each gradient."""
    param = torch.nn.Parameter(start.clone())
    optimizer = optgen.load(STOCHASTIC_ADAMW)([param], **hypers)
    for grad in grads:
        param.grad = grad
        with use_lowering(lowering):
            optimizer.step()
    return param.detach()
