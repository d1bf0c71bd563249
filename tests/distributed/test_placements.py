"""Test placements of a parameter, its gradient and its states: redistributed or refused."""

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


def _check_steps_by_placements(rank: int, lowering: str) -> dict[str, Any]:
    """Tell for all placements of a parameter and its gradient whether the step is right."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = distributed.init_device_mesh("cpu", (2,))
    values, grads = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    alone = nn.Parameter(values[0].clone())
    reference = Adam([alone])
    alone.grad = grads[0] + grads[1]
    reference.step()
    results = {}
    for param_placement in (Shard(0), Shard(1), Replicate()):
        for grad_placement in (Shard(0), Shard(1), Replicate(), Partial()):
            param = nn.Parameter(distribute_tensor(values[0].clone(), mesh, [param_placement]))
            # Each rank holds a summand of the gradient.
            summands = DTensor.from_local(grads[rank].clone(), mesh, [Partial()])
            param.grad = (
                summands
                if grad_placement.is_partial()
                else summands.redistribute(mesh, [grad_placement])
            )
            optimizer = Adam([param])
            text, before = explain(optimizer), param._version
            with use_lowering(lowering):
                optimizer.step()
            assert text.startswith("group 0: fused C++")
            assert param._version > before
            assert (
                param.placements
                == optimizer.state[param]["exp_avg"].placements
                == (param_placement,)
            )
            results[f"{param_placement} {grad_placement}"] = torch.equal(param.full_tensor(), alone)
    return results


def _errors_of_placements(rank: int) -> list[str]:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = distributed.init_device_mesh("cpu", (2,))
    other_mesh = distributed.init_device_mesh("cpu", (1, 2))
    messages = []

    def check_refused(param: Any, grad: Any) -> None:
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
    check_refused(summand, distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
    check_refused(sharded, distribute_tensor(torch.ones(4, 2), other_mesh, [Replicate(), Shard(0)]))
    check_refused(sharded, torch.ones(4, 2))
    return messages


def _error_of_a_plain_state(rank: int) -> str:
    """Return the error of a plain tensor as the state, with the shape of the shard."""
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
    for found in pair.run(_check_steps_by_placements, lowering):
        assert found
        assert all(found.values()), found


def test_placements_that_do_not_fit_are_refused() -> None:
    for summand, mesh, plain in pair.run(_errors_of_placements):
        assert "each rank holds a summand; redistribute the parameter" in summand
        assert "distribute both over one mesh" in mesh
        assert "but its gradient is a plain tensor; make both DTensors" in plain


def test_a_plain_state_of_a_sharded_parameter_is_refused() -> None:
    for message in pair.run(_error_of_a_plain_state):
        expected = "exp_avg is a plain tensor, but its parameter is a DTensor(Shard(dim=0),)"
        assert expected in message
