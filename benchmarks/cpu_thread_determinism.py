"""Check that a step gives the same bits for any number of threads."""

import torch

from optgen.bench.results import Cell, Figures
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import OURS, Stepper, accepted_tensors, gradients

_STEPS = 3


def count_different_tensors(cell: Cell) -> Figures:
    """Count the parameters and states that differ from those of one thread, after a few steps."""
    with_one_thread, with_several = (
        _tensors_after_steps(cell, threads) for threads in (1, cell.threads)
    )
    pairs = zip(with_one_thread, with_several, strict=True)
    return {OURS: {"different": sum(not torch.equal(a, b) for a, b in pairs)}}


def _tensors_after_steps(cell: Cell, threads: int) -> list[torch.Tensor]:
    """Return parameters and states after a few steps."""
    torch.set_num_threads(threads)
    tensor_list, dtype = (
        accepted_tensors(cell.name, LISTS[cell.tensors]),
        getattr(torch, cell.dtype),
    )
    stepper = Stepper(cell.name, OURS, tensor_list, dtype)
    stepper.set_gradients(gradients(tensor_list, dtype))
    for _ in range(_STEPS):
        stepper.step()
    states = (stepper.optimizer.state[param] for param in stepper.params)
    return [*stepper.params, *(value for state in states for value in state.values())]
