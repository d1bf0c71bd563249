"""Test how loading casts states, and checkpoints and pickles of older torch versions."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from optim.classes import CLASSES, ours_and_torchs, parameters, states, takes, train
from parity.cases import CASE_OF_DENSE_CLASS, Case
from parity.classes import NAMES
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def options_for_all_states(name: str) -> dict[str, Any]:
    """Return arguments with which the class has every state that it can have."""
    return dict(CASE_OF_DENSE_CLASS.get(name, Case(name)).options)


def types_of_states(optimizer: Any) -> list[tuple[str, Any]]:
    """Return every state's key with its dtype, device and shape, or its type if it is no tensor."""
    return [
        (key, (v.dtype, v.device, v.shape) if isinstance(v, Tensor) else type(v))
        for key, v in states(optimizer)
    ]


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_loading_casts_states_as_in_torch(name: str, target: torch.dtype) -> None:
    """A floating-point state other than `step` gets its parameter's dtype. Our class can step."""
    params = parameters(name)
    source = ours_and_torchs(name)[1](params, **options_for_all_states(name))
    train(name, source, params, 2)
    found = []
    for cls in ours_and_torchs(name):
        loaded = cls(parameters(name, target), **options_for_all_states(name))
        loaded.load_state_dict(source.state_dict())
        found.append(types_of_states(loaded))
    assert found[0] == found[1]
    ours = ours_and_torchs(name)[0](
        params := parameters(name, target), **options_for_all_states(name)
    )
    ours.load_state_dict(source.state_dict())
    train(name, ours, params, 1)


@pytest.mark.parametrize("flag", ["fused", "capturable"])
@pytest.mark.parametrize("name", [name for name in NAMES if takes(name, "capturable")])
def test_step_counts_of_a_fused_or_capturable_group_become_float32(name: str, flag: str) -> None:
    """They are float64 in the checkpoint, as after training with a default dtype of float64."""
    params = parameters(name)
    source = ours_and_torchs(name)[0](params)
    train(name, source, params, 2)
    checkpoint = source.state_dict()
    for values in checkpoint["state"].values():
        values["step"] = values["step"].double()
    checkpoint["param_groups"][0][flag] = True
    loaded = ours_and_torchs(name)[0](parameters(name))
    loaded.load_state_dict(checkpoint)

    assert {v.dtype for k, v in states(loaded) if k.startswith("step of")} == {torch.float32}


@pytest.mark.parametrize("name", NAMES)
def test_loading_keeps_unknown_keys_and_values_as_torch_does(name: str) -> None:
    """The checkpoint has values that are no tensors, and a key that is no parameter."""
    results = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        optimizer = cls(params)
        train(name, optimizer, params, 1)
        checkpoint = copy.deepcopy(optimizer.state_dict())
        extra = {"note": "a", "list": [torch.ones(2), {"deep": torch.ones(1)}], "count": 3}
        checkpoint["state"].setdefault(0, {}).update(extra)
        checkpoint["state"]["elsewhere"] = {"any": 1}
        other = cls(parameters(name, torch.bfloat16))
        other.load_state_dict(checkpoint)
        first = other.state[other.param_groups[0]["params"][0]]
        # Torch replaces a string by the repr of a generator, which has an address.
        note = re.sub("0x[0-9a-f]+", "", first["note"])
        values = [first["list"][0].dtype, first["list"][1]["deep"].dtype, note]
        results.append([*values, first["count"], other.state["elsewhere"]])
        assert other.state_dict()["state"]["elsewhere"] == {"any": 1}

    assert results[0] == results[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_holds_the_states_themselves_as_in_torch(name: str) -> None:
    params = parameters(name)
    optimizer = ours_and_torchs(name)[0](params)
    train(name, optimizer, params, 1)

    checkpoint = optimizer.state_dict()

    for param, values in zip(params, checkpoint["state"].values(), strict=False):
        assert all(values[key] is optimizer.state[param][key] for key in values)


@pytest.mark.parametrize("name", CLASSES)
def test_unpickling_completes_a_pickle_of_an_old_torch_as_torch_does(name: str) -> None:
    """The pickle lacks hooks and later flags, and its step counts are Python numbers."""
    results = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        optimizer = cls(params)
        train(name, optimizer, params, 2)
        old: dict[str, Any] = copy.deepcopy(optimizer.__getstate__())
        defaults = ours_and_torchs(name)[1](parameters(name)).defaults
        later_flags = ("foreach", "maximize", "capturable", "fused")
        flags = [k for k, v in defaults.items() if k in later_flags and v in (None, False)]
        flags += ["differentiable"] * takes(name, "differentiable")
        torch_completes = name not in ("SparseAdam", "Muon", "Adafactor")
        for flag in flags if torch_completes else []:
            del old["param_groups"][0][flag]
        for values in old["state"].values():
            if isinstance(values.get("step"), Tensor) and torch_completes:
                values["step"] = float(values["step"])
        unpickled = cls.__new__(cls)
        unpickled.__setstate__(old)
        (group,) = unpickled.param_groups
        flag_values = {flag: group.get(flag) or None for flag in flags}
        results.append([flag_values, types_of_states(unpickled)])
        train(name, optimizer, params, 2, start=2)
        train(name, unpickled, group["params"], 2, start=2)
        assert all(map(torch.equal, params, group["params"]))
        assert unpickled._optimizer_step_pre_hooks == {}

    assert results[0] == results[1]


@pytest.mark.parametrize("name", CLASSES)
def test_a_checkpoint_has_torchs_group_keys(name: str) -> None:
    """Keys that torch's class does not have are not saved, and loading does not change them."""
    ours, theirs = (cls(parameters(name)) for cls in ours_and_torchs(name))
    found, expected = (
        [list(group) for group in each.state_dict()["param_groups"]] for each in (ours, theirs)
    )
    assert found == expected
    fused = ours_and_torchs(name)[0](parameters(name), fused=True)
    before = dict(fused.param_groups[0])
    fused.load_state_dict(theirs.state_dict())
    ours_only = set(before) - set(found[0])
    assert {key: fused.param_groups[0][key] for key in ours_only} == {
        key: before[key] for key in ours_only
    }


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "SparseAdam"])
def test_either_class_loads_the_others_flattened_checkpoint(name: str) -> None:
    """A flattened checkpoint has one entry for each value, named after its parameter."""
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    ours, theirs = ours_and_torchs(name)
    model = torch.nn.Linear(3, 2, bias=False)

    def optimizer_after_a_step(cls: Any) -> Any:
        optimizer = cls(model.parameters())
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        model.weight.grad = None  # torch's functions create states only if there are none
        return optimizer

    for saver, loader in [(ours, ours), (theirs, ours), (ours, theirs)]:
        before, after = optimizer_after_a_step(saver), loader(model.parameters())
        saved = get_optimizer_state_dict(model, before, options=flat)
        set_optimizer_state_dict(model, after, saved, options=flat)
        for (key, found), (_, expected) in zip(states(after), states(before), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=key)
        assert saver is not loader or after.param_groups[0].keys() == before.param_groups[0].keys()
