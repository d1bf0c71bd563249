"""Test that LBFGS refuses tensors without memory, and vectors of another shape, before a step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from optgen.optim import LBFGS


def stepped() -> tuple[Tensor, LBFGS]:
    """Return a parameter and its optimizer after two steps, so that the state has pairs."""
    param = torch.nn.Parameter(torch.arange(6, dtype=torch.float64))
    optimizer = LBFGS([param])
    for scale in (1.0, 2.0):
        param.grad = scale * param.detach() + 1
        optimizer.step(lambda: 1.0)
    return param, optimizer


@pytest.mark.parametrize("place", ["a parameter", "d", "prev_flat_grad"])
def test_a_tensor_without_memory_is_refused(place: str) -> None:
    param, optimizer = stepped()
    tensor = optimizer.state[param].get(place, param)
    tensor.detach().untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=rf"{place} has .* storage has only 0 bytes"):
        optimizer.step(lambda: 1.0)


@pytest.mark.parametrize("key", ["d", "prev_flat_grad"])
@pytest.mark.parametrize("value", [torch.ones(3), None], ids=["short", "None"])
def test_a_vector_of_another_shape_is_refused(key: str, value: Tensor | None) -> None:
    param, optimizer = stepped()
    before = param.detach().clone()
    optimizer.state[param][key] = value
    with pytest.raises(RuntimeError, match=r"the state of LBFGS has .* numbers"):
        optimizer.step(lambda: 1.0)
    assert torch.equal(param, before)
