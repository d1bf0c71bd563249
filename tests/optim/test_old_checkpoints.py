"""Test the casts of a load, and checkpoints and pickles of older torch versions."""

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


def options(name: str) -> dict[str, Any]:
    """Return arguments with which the class has every state that it can have."""
    return dict(CASE_OF_DENSE_CLASS.get(name, Case(name)).options)


def described(optimizer: Any) -> list[tuple[str, Any]]:
    """Return every entry of the state: a tensor's dtype, device and shape, or a value's type."""
    return [
        (key, (v.dtype, v.device, v.shape) if isinstance(v, Tensor) else type(v))
        for key, v in states(optimizer)
    ]


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_load_casts_as_torchs(name: str, target: torch.dtype) -> None:
    """A floating-point state gets its parameter's dtype, except `step`; then ours takes a step."""
    params = parameters(name)
    source = ours_and_torchs(name)[1](params, **options(name))
    train(name, source, params, 2)
    found = []
    for cls in ours_and_torchs(name):
        loaded = cls(parameters(name, target), **options(name))
        loaded.load_state_dict(source.state_dict())
        found.append(described(loaded))
    assert found[0] == found[1]
    ours = ours_and_torchs(name)[0](params := parameters(name, target), **options(name))
    ours.load_state_dict(source.state_dict())
    train(name, ours, params, 1)


@pytest.mark.parametrize("flag", ["fused", "capturable"])
@pytest.mark.parametrize("name", [name for name in NAMES if takes(name, "capturable")])
def test_counts_of_a_fused_or_capturable_group_are_float32(name: str, flag: str) -> None:
    """Counts become float32 even if they were float64, as with a default dtype of float64."""
    params = parameters(name)
    source = ours_and_torchs(name)[0](params)
    train(name, source, params, 2)
    packed = source.state_dict()
    for values in packed["state"].values():
        values["step"] = values["step"].double()
    packed["param_groups"][0][flag] = True
    loaded = ours_and_torchs(name)[0](parameters(name))
    loaded.load_state_dict(packed)

    assert {v.dtype for k, v in states(loaded) if k.startswith("step of")} == {torch.float32}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_tensor_or_belongs_to_no_parameter_is_kept_as_torch_does(name: str) -> None:
    loaded = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        optimizer = cls(params)
        train(name, optimizer, params, 1)
        packed = copy.deepcopy(optimizer.state_dict())
        extra = {"note": "a", "list": [torch.ones(2), {"deep": torch.ones(1)}], "count": 3}
        packed["state"].setdefault(0, {}).update(extra)
        packed["state"]["elsewhere"] = {"any": 1}
        other = cls(parameters(name, torch.bfloat16))
        other.load_state_dict(packed)
        first = other.state[other.param_groups[0]["params"][0]]
        note = re.sub(
            "0x[0-9a-f]+", "", first["note"]
        )  # torch replaces it by the text of a generator
        values = [first["list"][0].dtype, first["list"][1]["deep"].dtype, note]
        loaded.append([*values, first["count"], other.state["elsewhere"]])
        assert other.state_dict()["state"]["elsewhere"] == {"any": 1}

    assert loaded[0] == loaded[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_holds_references_as_torchs(name: str) -> None:
    params = parameters(name)
    optimizer = ours_and_torchs(name)[0](params)
    train(name, optimizer, params, 1)

    packed = optimizer.state_dict()

    for param, values in zip(params, packed["state"].values(), strict=False):
        assert all(values[key] is optimizer.state[param][key] for key in values)


@pytest.mark.parametrize("name", CLASSES)
def test_a_pickle_of_an_old_torch_is_completed_as_torch_does(name: str) -> None:
    """Such a pickle lacks hooks and later flags, and its counts are Python numbers."""
    completed = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        optimizer = cls(params)
        train(name, optimizer, params, 2)
        old: dict[str, Any] = copy.deepcopy(optimizer.__getstate__())
        flags = [
            k
            for k, v in ours_and_torchs(name)[1](parameters(name)).defaults.items()
            if v in (None, False)
        ]
        flags = [flag for flag in flags if flag in ("foreach", "maximize", "capturable", "fused")]
        flags += ["differentiable"] * takes(name, "differentiable")
        # These classes of torch do not complete an old pickle.
        torch_completes = name not in ("SparseAdam", "Muon", "Adafactor")
        for flag in flags if torch_completes else []:
            del old["param_groups"][0][flag]
        for values in old["state"].values():
            if isinstance(values.get("step"), Tensor) and torch_completes:
                values["step"] = float(values["step"])
        revived = cls.__new__(cls)
        revived.__setstate__(old)
        revived_params = revived.param_groups[0]["params"]
        completed.append(
            [{k: revived.param_groups[0].get(k) or None for k in flags}, described(revived)]
        )
        train(name, optimizer, params, 2, start=2)
        train(name, revived, revived_params, 2, start=2)
        assert all(map(torch.equal, params, revived_params))
        assert revived._optimizer_step_pre_hooks == {}

    assert completed[0] == completed[1]


@pytest.mark.parametrize("name", CLASSES)
def test_a_checkpoint_has_torchs_group_keys(name: str) -> None:
    """Keys that torch's class lacks are not saved, and a load leaves them unchanged."""
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
    """torch's functions make one entry for each value, by the names of parameters."""
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    ours, theirs = ours_and_torchs(name)
    model = torch.nn.Linear(3, 2, bias=False)

    def stepped(cls: Any) -> Any:
        optimizer = cls(model.parameters())
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        model.weight.grad = None  # torch's functions create states only if there are none
        return optimizer

    for saver, loader in [(ours, ours), (theirs, ours), (ours, theirs)]:
        before, after = stepped(saver), loader(model.parameters())
        saved = get_optimizer_state_dict(model, before, options=flat)
        set_optimizer_state_dict(model, after, saved, options=flat)
        for (key, found), (_, expected) in zip(states(after), states(before), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=key)
        assert saver is not loader or after.param_groups[0].keys() == before.param_groups[0].keys()
