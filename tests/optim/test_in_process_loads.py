"""Test loads from a live optimizer: the two share no tensors, as if a file stood in between."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from optim.classes import closure, give_gradients, ours_and_torchs, parameters
from parity.classes import NAMES
from torch import Tensor

import optgen.keyed
import optgen.optim
from optgen import modifiers
from optgen.optim import lr_scheduler as schedulers


def trained(cls: Any, name: str, steps: int = 3, **options: Any) -> tuple[Any, list[Tensor]]:
    params = parameters(name, torch.float32)
    optimizer = cls(params, **options)
    train(optimizer, name, params, steps)
    return optimizer, params


def train(optimizer: Any, name: str, params: list[Tensor], steps: int) -> None:
    for step in range(steps):
        give_gradients(name, params, step)
        evaluate = closure(name, params)
        optimizer.step(*([evaluate] if evaluate else []))


def bits(value: Any) -> bytes:
    """Return a state dict as bytes, to compare all of its values."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


IN_PROCESS: dict[str, tuple[Any, str]] = {name: (ours_and_torchs(name)[0], name) for name in NAMES}
IN_PROCESS |= {
    "AdamW8bit": (optgen.compose(optgen.optim.AdamW, modifiers.quantized(min_elements=1)), "AdamW"),
    "master": (optgen.compose(optgen.optim.AdamW, modifiers.master), "AdamW"),
    "Prodigy": (optgen.optim.Prodigy, "AdamW"),
    "SOAP": (optgen.optim.SOAP, "Muon"),
    "RowWiseAdagrad": (optgen.keyed.RowWiseAdagrad, "Muon"),
}


@pytest.mark.parametrize("case", IN_PROCESS)
def test_a_snapshot_can_be_loaded_many_times(case: str) -> None:
    """A load copies tensors, so steps of the optimizer do not change what it has loaded."""
    cls, name = IN_PROCESS[case]
    optimizer, params = trained(cls, name)
    snapshot = copy.deepcopy(optimizer.state_dict())
    saved, results = bits(snapshot), []
    weights = [param.detach().clone() for param in params]
    for _ in range(2):
        optimizer.load_state_dict(snapshot)
        for param, values in zip(params, weights, strict=True):
            param.data.copy_(values)
        train(optimizer, name, params, 3)
        assert bits(snapshot) == saved
        results.append([param.detach().clone() for param in params])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("case", IN_PROCESS)
def test_two_optimizers_share_no_state_after_a_load(case: str) -> None:
    cls, name = IN_PROCESS[case]
    first, first_params = trained(cls, name)
    second, _ = trained(cls, name, steps=1)
    second.load_state_dict(first.state_dict())
    before = bits(second.state_dict())
    train(first, name, first_params, 2)
    assert bits(second.state_dict()) == before


def test_a_load_copies_a_shared_tensor_once_and_keeps_other_objects() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = optgen.optim.SGD([param], lr=0.1, momentum=0.9)
    shared, unknown = torch.ones(2), object()
    state = {0: {"momentum_buffer": shared, "mine": [shared, (unknown, shared)]}, "other": shared}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    loaded = optimizer.state[param]
    assert loaded["momentum_buffer"] is loaded["mine"][0] is loaded["mine"][1][1]
    assert loaded["momentum_buffer"] is not shared
    assert loaded["mine"][1][0] is unknown
    assert optimizer.state["other"] is loaded["momentum_buffer"]  # type: ignore[index]
    assert torch.equal(shared, torch.ones(2))


def test_loads_of_schedulers_do_not_change_the_loaded_state() -> None:
    """A snapshot of each scheduler can be loaded many times."""
    makers: list[Any] = [
        lambda o: schedulers.MultiStepLR(o, [2, 2, 5]),
        lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 3),
        lambda o: schedulers.OneCycleLR(o, max_lr=0.1, total_steps=30),
        lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
        lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
        lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
        lambda o: schedulers.ChainedScheduler([schedulers.ExponentialLR(o, 0.9)]),
        lambda o: schedulers.SequentialLR(
            o, [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)], [2]
        ),
    ]
    for make in makers:
        param = torch.nn.Parameter(torch.ones(1))
        optimizer = optgen.optim.SGD([param], lr=torch.tensor(0.1), momentum=0.9)
        scheduler = make(optimizer)
        arguments = (1.0,) if isinstance(scheduler, schedulers.ReduceLROnPlateau) else ()
        rates = []
        optimizer.step()
        scheduler.step(*arguments)
        snapshot = copy.deepcopy((scheduler.state_dict(), optimizer.state_dict()))
        for _ in range(2):
            scheduler.load_state_dict(snapshot[0])
            optimizer.load_state_dict(snapshot[1])
            rates.append([])
            for _ in range(6):
                optimizer.step()
                scheduler.step(*arguments)
                rates[-1].append(float(optimizer.param_groups[0]["lr"]))
        assert rates[0] == rates[1], type(scheduler).__name__
