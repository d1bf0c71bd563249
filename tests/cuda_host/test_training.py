"""Test training on a device: updates in the backward pass, scalers, checkpoints, other rules."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from cuda_host.emulated_runtime import host_waits, launches, recorded
from cuda_host.twins import Twins, draw, largest_error
from torch import Tensor, nn

import optgen
import optgen.optim
from benchmarks.classes import torch_class
from optgen.keyed import UpdateInBackward
from optgen.optim.swa_utils import AveragedModel


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).double()


def _loss(model: Any, step: int, device: str) -> Tensor:
    output: Tensor = model(draw((4, 16), step).to(device))
    return output.square().sum()


def test_updates_in_the_backward_pass() -> None:
    networks = {"cuda": _network().cuda(), "cpu": _network()}
    models = {
        device: UpdateInBackward(network, optgen.optim.AdamW, lr=1e-2)
        for device, network in networks.items()
    }
    for step in range(3):
        for device, model in models.items():
            with recorded() as records:
                _loss(model, step, device).backward()
            assert bool(launches(records)) == (device == "cuda")
            model.fused_optimizer.step()

    pairs = [list(network.parameters()) for network in networks.values()]
    assert largest_error(*pairs) <= 1e-12


@pytest.mark.parametrize("fused", [None, True])
def test_a_scaler_skips_steps_with_infinities(fused: bool | None) -> None:
    twins = Twins(optgen.optim.AdamW, dtype=torch.float32, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    for step in range(5):
        scaler.scale(torch.ones((), device="cuda"))
        twins.give_gradients(step, scale=scaler.get_scale())
        is_skipped = step in (0, 3)
        if is_skipped:
            twins.params[0].grad = torch.full_like(twins.params[0], torch.inf)
        scaler.step(twins.optimizer)
        if not is_skipped:
            twins.step_oracle()
        scaler.update()

    twins.check()


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor", "NAdam"])
@pytest.mark.parametrize("continued_by", ["ours", "torch"])
def test_a_checkpoint_continues(name: str, continued_by: str) -> None:
    cls = getattr(optgen.optim, name)
    options = {"momentum": 0.9} if name == "SGD" else {}
    twins = Twins(cls, **options)
    twins.set(**options)
    twins.train(2)
    saved, host_saved = (
        copy.deepcopy(each.state_dict()) for each in (twins.optimizer, twins.oracle)
    )
    make = cls if continued_by == "ours" else torch_class(name)
    twins.optimizer, twins.oracle = make(twins.params, **options), cls(twins.host_params, **options)
    twins.optimizer.load_state_dict(saved)
    twins.oracle.load_state_dict(host_saved)
    twins.train(2, first=2)

    twins.check()


@pytest.mark.parametrize("name", ["LAMB", "Lion", "Prodigy", "CAME", "NorMuon", "AdEMAMix"])
def test_rules_beyond_torch(name: str) -> None:
    twins = Twins(getattr(optgen.optim, name), ((24, 24), (40, 30)))
    if name == "NorMuon":
        twins.limit = 5e-3  # its products are in bfloat16
    twins.train(3)

    twins.check()


@pytest.mark.parametrize("name", ["SOAP", "Shampoo"])
def test_rules_on_whole_matrices_take_foreach(name: str) -> None:
    twins = Twins(getattr(optgen.optim, name), ((24, 24), (40, 30)))
    twins.limit = 1e-6  # roots and eigenvectors amplify the order of sums
    twins.train(2)

    twins.check()


def test_an_averaged_model() -> None:
    averages = []
    for device in ("cuda", "cpu"):
        network = _network().to(device)
        average = AveragedModel(network)
        for step in range(3):
            with torch.no_grad():
                for index, param in enumerate(network.parameters()):
                    param.copy_(draw(tuple(param.shape), 10 * step + index))
            average.update_parameters(network)
        averages.append(list(average.module.parameters()))

    assert largest_error(*averages) <= 1e-12


def test_lbfgs_on_a_device() -> None:
    finals = [_lbfgs_parameters(device) for device in ("cuda", "cpu")]

    assert largest_error(*finals) <= 1e-10


def _lbfgs_parameters(device: str) -> list[Tensor]:
    """Return the parameters of a network after a step of LBFGS."""
    network = _network().to(device)
    optimizer = optgen.optim.LBFGS(network.parameters(), max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(network, 0, device)
        loss.backward()
        return loss

    optimizer.step(closure)
    return list(network.parameters())


def test_a_step_that_a_scaler_may_skip_does_not_wait() -> None:
    twins = Twins(optgen.optim.AdamW, dtype=torch.float32, fused=True)
    twins.optimizer.grad_scale = torch.ones((), device="cuda")
    twins.optimizer.found_inf = torch.zeros((), device="cuda")
    twins.train(2)
    twins.give_gradients(2)
    with recorded() as records:
        twins.step()

    assert host_waits(records) == []
    twins.check()
