"""Test the creation of states: by the constructor or a step, initial values, devices and memory."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from newest import adagrad_makes_missing_state
from torch import Tensor
from torch.nn import Parameter

import optgen.optim

BOTH = (optgen.optim, torch.optim)
META = torch.ones(2, device="meta")


def stepped(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Take a step with zero gradients; return the states of each parameter."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    optimizer.step()
    return [optimizer.state[p] for group in optimizer.param_groups for p in group["params"]]


def test_adagrad_creates_state_in_the_constructor_even_for_frozen_parameters() -> None:
    for module in BOTH:
        params = [Parameter(torch.ones(2)), Parameter(torch.ones(3), requires_grad=False)]
        optimizer = module.Adagrad(params, initial_accumulator_value=0.5)

        states = optimizer.state_dict()["state"]
        assert [list(states[index]) for index in (0, 1)] == [["step", "sum"]] * 2
        assert [states[index]["sum"].tolist() for index in (0, 1)] == [[0.5] * 2, [0.5] * 3]


@adagrad_makes_missing_state
def test_state_that_the_constructor_creates_begins_alike_in_every_group() -> None:
    """The constructor's default counts, even for a group that has a value of its own."""
    for module in BOTH:
        first, second, late = (Parameter(torch.ones(2)) for _ in range(3))
        groups = [{"params": [first]}, {"params": [second], "initial_accumulator_value": 0.1}]
        optimizer = module.Adagrad(groups, initial_accumulator_value=0.5)
        optimizer.add_param_group({"params": [late], "initial_accumulator_value": 0.2})

        assert late not in optimizer.state
        assert [s["sum"].tolist() for s in stepped(optimizer)] == [[0.5] * 2] * 3


def test_state_that_a_step_creates_begins_as_its_group_says() -> None:
    for module in BOTH:
        first, late = Parameter(torch.ones(2)), Parameter(torch.ones(2))
        optimizer = module.Rprop([{"params": [first], "lr": 0.1}], lr=0.2)
        optimizer.add_param_group({"params": [late], "lr": 0.3})

        assert [s["step_size"][0].item() for s in stepped(optimizer)] == pytest.approx([0.1, 0.3])


@pytest.mark.parametrize(("name", "key"), [("Adagrad", "sum"), ("Rprop", "step_size")])
def test_a_complex_state_begins_alike_in_both_parts(name: str, key: str) -> None:
    for module in BOTH:
        options = {"initial_accumulator_value": 0.5} if name == "Adagrad" else {"lr": 0.5}
        optimizer = getattr(module, name)([Parameter(torch.ones(2, dtype=torch.cfloat))], **options)
        state = stepped(optimizer)[0][key]
        assert state.tolist() == [0.5 + 0.5j] * 2


@pytest.mark.parametrize("name", ["ASGD", "Rprop"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_state_that_begins_as_a_tensor_lr_is_detached_from_it(
    name: str, shape: tuple[int, ...]
) -> None:
    """State never requires gradients. Torch's Rprop raises an error for such an lr."""
    lr = torch.full(shape, 0.5).requires_grad_()
    optimizer = getattr(optgen.optim, name)([Parameter(torch.ones(2))], lr=lr)
    state = stepped(optimizer)[0]
    assert {"ASGD": "eta", "Rprop": "step_size"}[name] in state
    assert not any(value.requires_grad for value in state.values())


def test_share_memory_shares_the_states() -> None:
    for module in BOTH:
        optimizer = module.Adagrad([Parameter(torch.ones(2))])
        optimizer.share_memory()
        (state,) = optimizer.state.values()
        assert state["sum"].is_shared()
    assert not hasattr(optgen.optim.Adam, "share_memory")


def scalar_devices(optimizer: Any) -> dict[str, str]:
    """Return the device types of a meta parameter's scalar states, by key."""
    optimizer.init_state()
    state: dict[str, Tensor] = optimizer.state[META]
    return {key: value.device.type for key, value in state.items() if not value.dim()}


def test_scalar_states_have_torchs_devices() -> None:
    """Scalars are on the CPU, except in a capturable group and in ASGD."""
    META.requires_grad_()
    nadam, asgd = optgen.optim.NAdam, optgen.optim.ASGD

    assert scalar_devices(nadam([META])) == {"step": "cpu", "mu_product": "cpu"}
    assert scalar_devices(nadam([META], capturable=True)) == {"step": "meta", "mu_product": "meta"}
    assert scalar_devices(asgd([META])) == {"step": "meta", "eta": "meta", "mu": "meta"}


def test_python_numbers_in_an_old_checkpoint_become_tensors() -> None:
    for module in BOTH:
        optimizer = module.ASGD([Parameter(torch.ones(2))])
        stepped(optimizer)
        saved = optimizer.state_dict()
        saved["state"][0] |= {"step": 3, "eta": 0.25, "mu": 1}
        optimizer.load_state_dict(saved)

        (state,) = optimizer.state.values()
        found = [(state[key].item(), state[key].dtype) for key in ("step", "eta", "mu")]
        assert found == [(3, torch.float32), (0.25, torch.float32), (1, torch.float32)]


@pytest.fixture
def gc_events() -> Iterator[list[str]]:
    """Yield a list that gets the garbage collector's events in a test: "start 0", "stop 0"."""
    events: list[str] = []

    def record_event(phase: str, info: dict[str, int]) -> None:
        events.append(f"{phase} {info['generation']}")

    gc.unfreeze()
    gc.collect()
    gc.callbacks.append(record_event)
    yield events
    gc.callbacks.remove(record_event)
    gc.freeze()


def thousand_parameters() -> list[Tensor]:
    return [Parameter(torch.ones(())) for _ in range(1000)]


def test_creating_many_states_starts_no_garbage_collection(gc_events: list[str]) -> None:
    optimizer = optgen.optim.Adam(thousand_parameters())
    gc.collect()
    gc_events.clear()
    optimizer.init_state()

    # Since Python 3.12 the collector runs between bytecodes, and not inside an allocation. So a
    # small collection that was due before the creation of states may still run.
    due = ["start 0", "stop 0"] if sys.version_info >= (3, 12) else []
    assert gc_events in ([], due)
    assert gc.isenabled()
    assert len(optimizer.state) == 1000


def test_objects_frozen_for_the_collector_stay_frozen() -> None:
    """Programs freeze objects before a fork, for example."""
    optimizer = optgen.optim.Adam(thousand_parameters())
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        optimizer.init_state()
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()
        gc.freeze()


def test_each_state_has_memory_of_its_own() -> None:
    """Even step counts share no memory, although one call creates them all."""
    params = [Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = optgen.optim.Adam(params)
    optimizer.init_state()
    tensors = [value for values in optimizer.state.values() for value in values.values()]

    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 9
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)
