"""Read and write step counts and scalar states, as floats or, for graph capture, as tensors."""

import torch
from torch import Tensor

from optgen.runtime.eager.scalars import Scalar
from optgen.runtime.eager.tensor_lists import TensorList


def advance(steps: list[Tensor]) -> float:
    """Add 1 to the step counts of a bucket; return the count, which is equal for all."""
    if steps[0].is_cpu:
        # The other operand is a CPU tensor: torch would wrap a Python number once per step count.
        torch._foreach_add_(steps, torch.ones((), device="cpu"), alpha=1.0)
    else:
        torch._foreach_add_(steps, 1)
    return float(steps[0].item())


def store(states: list[Tensor], value: Scalar) -> float:
    """Write a scalar state of a whole bucket; return the value as the state's dtype rounds it."""
    for state in states:
        state.fill_(value)
    return float(states[0].item())


def advance_one(step: Tensor | TensorList, capturable: bool) -> Scalar:
    """Add 1 to the step count of one parameter; return the count as `read_one` does."""
    step.add_(1)
    return read_one(step, capturable)


def store_one(state: Tensor | TensorList, value: Scalar, capturable: bool) -> Scalar:
    """Write the scalar state of one parameter; return it as `read_one` does."""
    state.fill_(value)
    return read_one(state, capturable)


def read_one(state: Tensor | TensorList, capturable: bool) -> Scalar:
    """Return the scalar state of one parameter: a float; for capture or autograd, a new tensor."""
    if isinstance(state, TensorList):
        return state.vector()
    if capturable or state.requires_grad:
        return state.to(torch.float64, copy=True)
    return float(state.item())
