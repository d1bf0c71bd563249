"""Test the creation of states: by the constructor or a step, initial values, devices and memory."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch_versions import adagrad_makes_missing_state

import optgen.optim

MODULES = (optgen.optim, torch.optim)
META_TENSOR = torch.ones(2, device="meta")


def states_after_a_step(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Take a step with zero gradients; return the states of each parameter."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    optimizer.step()
    return [optimizer.state[p] for group in optimizer.param_groups for p in group["params"]]


def test_adagrads_constructor_creates_states_even_of_frozen_parameters() -> None:
    for module in MODULES:
        params = [Parameter(torch.ones(2)), Parameter(torch.ones(3), requires_grad=False)]
        optimizer = module.Adagrad(params, initial_accumulator_value=0.5)

        states = optimizer.state_dict()["state"]
        assert [list(states[index]) for index in (0, 1)] == [["step", "sum"]] * 2
        assert [states[index]["sum"].tolist() for index in (0, 1)] == [[0.5] * 2, [0.5] * 3]


@adagrad_makes_missing_state
def test_states_of_the_kind_that_constructors_create_start_equal_in_every_group() -> None:
    """They start with the constructor's default, even in a group that has a value of its own."""
    for module in MODULES:
        first, second, late = (Parameter(torch.ones(2)) for _ in range(3))
        groups = [{"params": [first]}, {"params": [second], "initial_accumulator_value": 0.1}]
        optimizer = module.Adagrad(groups, initial_accumulator_value=0.5)
        optimizer.add_param_group({"params": [late], "initial_accumulator_value": 0.2})

        assert late not in optimizer.state
        assert [s["sum"].tolist() for s in states_after_a_step(optimizer)] == [[0.5] * 2] * 3


def test_a_state_that_a_step_creates_starts_with_its_groups_value() -> None:
    for module in MODULES:
        first, late = Parameter(torch.ones(2)), Parameter(torch.ones(2))
        optimizer = module.Rprop([{"params": [first], "lr": 0.1}], lr=0.2)
        optimizer.add_param_group({"params": [late], "lr": 0.3})

        assert [s["step_size"][0].item() for s in states_after_a_step(optimizer)] == pytest.approx(
            [0.1, 0.3]
        )


@pytest.mark.parametrize(("name", "key"), [("Adagrad", "sum"), ("Rprop", "step_size")])
def test_real_and_imaginary_parts_of_a_state_start_equal(name: str, key: str) -> None:
    for module in MODULES:
        options = {"initial_accumulator_value": 0.5} if name == "Adagrad" else {"lr": 0.5}
        optimizer = getattr(module, name)([Parameter(torch.ones(2, dtype=torch.cfloat))], **options)
        state = states_after_a_step(optimizer)[0][key]
        assert state.tolist() == [0.5 + 0.5j] * 2


@pytest.mark.parametrize("name", ["ASGD", "Rprop"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_state_that_starts_as_a_tensor_lr_is_detached_from_the_lr(
    name: str, shape: tuple[int, ...]
) -> None:
    """A state never requires gradients. Torch's Rprop refuses an lr that requires gradients."""
    lr = torch.full(shape, 0.5).requires_grad_()
    optimizer = getattr(optgen.optim, name)([Parameter(torch.ones(2))], lr=lr)
    state = states_after_a_step(optimizer)[0]
    assert {"ASGD": "eta", "Rprop": "step_size"}[name] in state
    assert not any(value.requires_grad for value in state.values())


def test_share_memory_shares_the_states() -> None:
    for module in MODULES:
        optimizer = module.Adagrad([Parameter(torch.ones(2))])
        optimizer.share_memory()
        (state,) = optimizer.state.values()
        assert state["sum"].is_shared()
    assert not hasattr(optgen.optim.Adam, "share_memory")


def scalar_devices(optimizer: Any) -> dict[str, str]:
    """Return the device types of a meta parameter's scalar states, by key."""
    optimizer.init_state()
    state: dict[str, Tensor] = optimizer.state[META_TENSOR]
    return {key: value.device.type for key, value in state.items() if not value.dim()}


def test_scalar_states_have_torchs_devices() -> None:
    """Scalars are on the CPU, except in a capturable group and in ASGD."""
    META_TENSOR.requires_grad_()
    nadam, asgd = optgen.optim.NAdam, optgen.optim.ASGD

    assert scalar_devices(nadam([META_TENSOR])) == {"step": "cpu", "mu_product": "cpu"}
    assert scalar_devices(nadam([META_TENSOR], capturable=True)) == {
        "step": "meta",
        "mu_product": "meta",
    }
    assert scalar_devices(asgd([META_TENSOR])) == {"step": "meta", "eta": "meta", "mu": "meta"}


def test_python_numbers_in_an_old_checkpoint_become_tensors() -> None:
    for module in MODULES:
        optimizer = module.ASGD([Parameter(torch.ones(2))])
        states_after_a_step(optimizer)
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
    due_collection = ["start 0", "stop 0"] if sys.version_info >= (3, 12) else []
    assert gc_events in ([], due_collection)
    assert gc.isenabled()
    assert len(optimizer.state) == 1000


def test_objects_frozen_for_the_collector_stay_frozen() -> None:
    """Programs freeze objects before a fork, for example."""
    optimizer = optgen.optim.Adam(thousand_parameters())
    gc.freeze()
    try:
        frozen_count = gc.get_freeze_count()
        optimizer.init_state()
        assert gc.get_freeze_count() == frozen_count
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
