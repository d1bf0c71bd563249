"""Test that sharded parameters take the same step from equal gradients of another dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import difference
from torch import Tensor, distributed, nn
from torch.distributed.tensor import Shard, distribute_tensor

import optgen.optim
from optgen import use_lowering

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and hasattr(Tensor, "grad_dtype")),
    reason="no torch.distributed, or this torch demands gradients of their parameters' dtype",
)


def _params_after_training(
    name: str, lowering: str, params: list[Any], dtype: torch.dtype
) -> list[Any]:
    """Take steps. All gradients but one have `dtype`; their values are exact in bfloat16."""
    params = [nn.Parameter(param.clone()) for param in params]
    optimizer = getattr(optgen.optim, name)(params, lr=0.1)
    for step in range(3):
        for index, param in enumerate(params):
            generator = torch.Generator().manual_seed(9 * step + index)
            drawn = torch.randn(param.shape, generator=generator).bfloat16()
            grad = drawn.to(torch.float32 if (step, index) == (1, 0) else dtype)
            param.grad_dtype = None
            param.grad = distribute_tensor(
                grad, param.device_mesh, param.placements, src_data_rank=None
            )
        with use_lowering(lowering):
            optimizer.step()
    return params


def _difference_of_dtypes(rank: int, name: str, lowering: str) -> float:
    mesh = distributed.init_device_mesh("cpu", (2,))
    drawn = [torch.randn(shape) for shape in ((8, 4), (5, 3), (33, 70))]
    sharded = [distribute_tensor(value, mesh, [Shard(0)], src_data_rank=None) for value in drawn]
    bfloat16_grads = _params_after_training(name, lowering, sharded, torch.bfloat16)
    float32_grads = _params_after_training(name, lowering, sharded, torch.float32)
    assert not any(map(torch.equal, drawn, (param.full_tensor() for param in bfloat16_grads)))
    pairs = zip(bfloat16_grads, float32_grads, strict=True)
    return max(difference(a.detach(), b.detach()) for a, b in pairs)


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "Muon"])
def test_bfloat16_gradients_step_as_equal_float32_gradients(name: str, lowering: str) -> None:
    for found in pair.run(_difference_of_dtypes, name, lowering):
        assert found < 1e-6
