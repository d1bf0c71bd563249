"""Test placements of a parameter, its gradient and its states: equal, redistributed, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import pair
from parity.cases import LOWERINGS
from torch import distributed, nn

from optgen import explain, use_lowering
from optgen.optim import SGD, Adam

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


def _placed(rank: int, lowering: str) -> dict[str, Any]:
    """Tell for every placement of a parameter and its gradient whether the step is the same."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = distributed.init_device_mesh("cpu", (2,))
    values, grads = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    alone = nn.Parameter(values[0].clone())
    reference = Adam([alone])
    alone.grad = grads[0] + grads[1]
    reference.step()
    results = {}
    for of_param in (Shard(0), Shard(1), Replicate()):
        for of_grad in (Shard(0), Shard(1), Replicate(), Partial()):
            param = nn.Parameter(distribute_tensor(values[0].clone(), mesh, [of_param]))
            # A gradient that is not added up yet: each rank holds a summand.
            summands = DTensor.from_local(grads[rank].clone(), mesh, [Partial()])
            param.grad = (
                summands if of_grad.is_partial() else summands.redistribute(mesh, [of_grad])
            )
            optimizer = Adam([param])
            text, before = explain(optimizer), param._version
            with use_lowering(lowering):
                optimizer.step()
            assert text.startswith("group 0: fused C++")
            assert param._version > before
            assert param.placements == optimizer.state[param]["exp_avg"].placements == (of_param,)
            results[f"{of_param} {of_grad}"] = torch.equal(param.full_tensor(), alone)
    return results


def _refused(rank: int) -> list[str]:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = distributed.init_device_mesh("cpu", (2,))
    other = distributed.init_device_mesh("cpu", (1, 2))
    messages = []

    def step(param: Any, grad: Any) -> None:
        optimizer = SGD([param], lr=0.1, momentum=0.9)
        param.grad = grad
        before = param.to_local().clone()
        with pytest.raises(RuntimeError) as caught:
            optimizer.step()
        messages.append(str(caught.value))
        assert torch.equal(param.to_local(), before)
        assert not optimizer.state

    sharded = nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
    summand = nn.Parameter(DTensor.from_local(torch.ones(4, 2), mesh, [Partial()]))
    step(summand, distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
    step(sharded, distribute_tensor(torch.ones(4, 2), other, [Replicate(), Shard(0)]))
    step(sharded, torch.ones(4, 2))
    return messages


def _another_state(rank: int) -> str:
    """Return the error of a state of the right size with other placements."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = distributed.init_device_mesh("cpu", (2,))
    param = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    param.grad = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    optimizer = Adam([param])
    optimizer.step()
    optimizer.state[param]["exp_avg"] = torch.zeros(2, 4)
    with pytest.raises(RuntimeError) as caught:
        optimizer.step()
    return str(caught.value)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_gradient_gets_the_placements_of_its_parameter(lowering: str) -> None:
    for found in pair.run(_placed, lowering):
        assert found
        assert all(found.values()), found


def test_placements_that_do_not_fit_are_refused() -> None:
    for summand, mesh, plain in pair.run(_refused):
        assert "each rank holds a summand; redistribute the parameter" in summand
        assert "distribute both over one mesh" in mesh
        assert "but its gradient is a plain tensor; make both DTensors" in plain


def test_a_state_of_other_placements_is_refused() -> None:
    for message in pair.run(_another_state):
        expected = "exp_avg is a plain tensor, but its parameter is a DTensor(Shard(dim=0),)"
        assert expected in message
