"""Test rules that round to their parameter's dtype or draw random numbers, on two ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import PLACED_SHAPES, difference, gradients, shard
from parity.cases import LOWERINGS
from spec_files import spec_file
from torch import distributed, nn

import optgen
from optgen import explain, use_lowering

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

DTYPES = (torch.bfloat16, torch.float32)


def _differences_and_explain(
    rank: int, spec: str, dtype: torch.dtype, lowering: str
) -> dict[str, Any]:
    """Return differences of all tensors to one process after five steps, and `explain`."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    drawn = [torch.randn(shape).to(dtype) for shape, _ in PLACED_SHAPES]
    alone = [nn.Parameter(value.clone()) for value in drawn]
    placements = [placement for _, placement in PLACED_SHAPES]
    ours = [
        nn.Parameter(shard(v, placement, mesh))
        for v, placement in zip(drawn, placements, strict=True)
    ]
    cls = optgen.load(spec_file(spec))
    optimizers = cls(ours, lr=1e-2), cls(alone, lr=1e-2)
    for step in range(5):
        grads = gradients(step, dtype)
        for own, whole, placement, grad in zip(ours, alone, placements, grads, strict=True):
            whole.grad = grad
            own.grad = None if grad is None else shard(grad, placement, mesh)
        with use_lowering(lowering):
            for optimizer in optimizers:
                optimizer.step()
    results = {}
    for index, (own, whole) in enumerate(zip(ours, alone, strict=True)):
        results[f"{index} param"] = difference(own.detach(), whole.detach())
        for key, value in optimizers[1].state[whole].items():
            results[f"{index} {key}"] = difference(optimizers[0].state[own][key], value)
    return results | {"explain": explain(optimizers[0])}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kahan_sums_of_shards_equal_those_of_whole_parameters(
    dtype: torch.dtype, lowering: str
) -> None:
    for found in pair.run(_differences_and_explain, "kahan_adamw", dtype, lowering):
        assert found.pop("explain").startswith("group 0: fused C++")
        assert max(found.values()) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["stochastic_adamw", "normalized_at_random"])
def test_shards_draw_the_random_numbers_of_whole_parameters(name: str, dtype: torch.dtype) -> None:
    for found in pair.run(_differences_and_explain, name, dtype, "foreach"):
        found.pop("explain")
        assert {key: error for key, error in found.items() if error} == {}


def _explain_and_error(rank: int) -> list[str]:
    mesh = distributed.init_device_mesh("cpu", (2,))
    shape, placement = PLACED_SHAPES[0]
    param = nn.Parameter(shard(torch.ones(shape).bfloat16(), placement, mesh))
    optimizer = optgen.load(spec_file("stochastic_adamw"))([param])
    param.grad = torch.ones_like(param)
    text = explain(optimizer)
    optimizer.step()
    with use_lowering("fused_cpu"), pytest.raises(RuntimeError) as caught:
        optimizer.step()
    return [text, str(caught.value)]


def test_fused_cpu_refuses_shards_of_rules_that_draw_random_numbers() -> None:
    for text, error in pair.run(_explain_and_error):
        assert "foreach" in text
        assert "random numbers of sharded parameters" in text
        assert "random numbers of sharded parameters" in error
