"""Test that rules on whole matrices refuse DTensors before anything changes, on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import share
from torch import distributed, nn

import optgen

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

SPECS = Path(__file__).parent.parent / "specs"


def _refused(rank: int, name: str) -> list[list[str]]:
    """Return the messages of a step and of `init_state`, for each placement of a parameter."""
    from torch.distributed.tensor import Replicate, Shard

    mesh = distributed.init_device_mesh("cpu", (2,))
    value = torch.arange(12.0).reshape(4, 3)
    found = []
    for how in (Shard(0), Shard(1), Replicate()):
        param = nn.Parameter(share(value, how, mesh))
        param.grad = share(torch.ones(4, 3), how, mesh)
        before = param.detach().to_local().clone()
        optimizer: Any = optgen.load(SPECS / f"{name}.py")([param])
        found.append([])
        for call in (optimizer.step, optimizer.init_state):
            try:
                call()
            except RuntimeError as error:
                found[-1].append(str(error))
        assert torch.equal(param.detach().to_local(), before)
    return found


@pytest.mark.parametrize("name", ["soap", "polar_muon"])
def test_refused(name: str) -> None:
    for rank in pair.run(_refused, name):
        for messages in rank:
            assert "does not support parameters that are DTensors" in messages[0]
            assert len(messages) == (2 if name == "soap" else 1)  # only SOAP has square states
