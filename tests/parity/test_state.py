"""Test that state and groups equal torch's: keys, order, dtypes, shapes, devices, options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from parity.cases import CASE_OF_CLASS, Case, cases_and_lowerings
from parity.classes import CLOSURE_CLASSES, DENSE_CLASSES, NAMES, torch_has_flag
from parity.describe_state import describe_state
from parity.trajectories import Run, forced_lowering, random_parameters, shapes_for, train
from torch.optim import Optimizer

ADDED_KEYS = ["maximize", "foreach", "fused", "capturable", "differentiable"]
FLAGS: list[dict[str, Any]] = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
CASES = [*(Case(name) for name in NAMES), *CASE_OF_CLASS.values()]


def train_two_steps(optimizer: Optimizer, params: list[torch.Tensor]) -> Optimizer:
    train(Run(optimizer, params), 2)
    return optimizer


def params_of(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    params = random_parameters(shapes_for(case.name), dtype)
    if case.name in DENSE_CLASSES:
        channels_last = torch.ones(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last)
        params.append(torch.nn.Parameter(channels_last))
    return params


def flags_of_torch(case: Case, flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that torch's class also has."""
    return {key: value for key, value in flags.items() if torch_has_flag(case.name, key)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_state_equals_torchs(case: Case, flags: dict[str, Any], dtype: torch.dtype) -> None:
    if case.name in CLOSURE_CLASSES and dtype.itemsize == 2:
        pytest.skip("ours keeps the history of 16-bit parameters in float32")
    ours, theirs = params_of(case, dtype), params_of(case, dtype)

    optimizer = train_two_steps(case.ours(ours, **flags), ours)
    reference = train_two_steps(case.theirs(theirs, **flags_of_torch(case, flags)), theirs)

    assert describe_state(optimizer) == describe_state(reference)
    assert optimizer.state or case.name == "SGD"


@pytest.mark.parametrize(("case", "lowering"), cases_and_lowerings(CASE_OF_CLASS.values()))
def test_state_after_a_forced_lowering_equals_torchs(case: Case, lowering: str) -> None:
    ours, theirs = params_of(case, torch.float32), params_of(case, torch.float32)

    with forced_lowering(lowering):
        optimizer = train_two_steps(case.ours(ours), ours)
    reference = train_two_steps(case.theirs(theirs), theirs)

    assert describe_state(optimizer) == describe_state(reference)


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_scalar_states_have_torchs_dtype_if_the_default_is_float64(
    case: Case, flags: dict[str, Any]
) -> None:
    """With `fused=True`, scalar states are float32 in torch's classes and in ours."""
    if flags != flags_of_torch(case, flags):
        pytest.skip("torch has no fused kernel")
    ours, theirs = params_of(case, torch.float32), params_of(case, torch.float32)

    optimizer = train_two_steps(case.ours(ours, **flags), ours)
    reference = train_two_steps(case.theirs(theirs, **flags_of_torch(case, flags)), theirs)

    assert describe_state(optimizer) == describe_state(reference)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("case", CASE_OF_CLASS.values(), ids=str)
def test_float64_scalar_states_equal_torchs(case: Case) -> None:
    ours, theirs = params_of(case, torch.float64), params_of(case, torch.float64)

    optimizer = train_two_steps(case.ours(ours), ours)
    reference = train_two_steps(case.theirs(theirs), theirs)

    for a, b in zip(optimizer.state.values(), reference.state.values(), strict=True):
        for key in set(a) & {"step", "mu_product", "eta", "mu"}:
            assert a[key] == b[key]


@pytest.mark.parametrize("case", CASE_OF_CLASS.values(), ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_loaded_state_equals_torchs(case: Case, dtype: torch.dtype) -> None:
    """As in torch, loaded scalar states except `step` get a 16-bit parameter's dtype."""
    if case.name in CLOSURE_CLASSES and dtype.itemsize == 2:
        pytest.skip("ours keeps the history of 16-bit parameters in float32")
    theirs = params_of(case, dtype)
    saved = train_two_steps(case.theirs(theirs), theirs).state_dict()
    optimizer, reference = case.ours(params_of(case, dtype)), case.theirs(params_of(case, dtype))

    optimizer.load_state_dict(saved)
    reference.load_state_dict(saved)

    assert describe_state(optimizer) == describe_state(reference)
    for params, loaded in (
        (optimizer.param_groups[0]["params"], optimizer),
        (reference.param_groups[0]["params"], reference),
    ):
        train_two_steps(loaded, params)
    assert describe_state(optimizer) == describe_state(reference)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_groups_equal_torchs(case: Case, flags: dict[str, Any]) -> None:
    """Groups have torch's keys, order and values; then come the keys that torch lacks."""
    optimizer = case.ours(params_of(case, torch.float32), **flags)
    default = {"foreach": None} if torch_has_flag(case.name, "foreach") else {}
    reference = case.theirs(
        params_of(case, torch.float32), **{**default, **flags_of_torch(case, flags)}
    )

    for options_of in (lambda o: o.param_groups[0], lambda o: o.defaults):
        ours, theirs = options_of(optimizer), options_of(reference)
        assert list(ours)[: len(theirs)] == list(theirs)
        added = list(ours)[len(theirs) :]
        assert added == [key for key in ADDED_KEYS if key in added]
        for key in (key for key in theirs if key != "params"):
            assert ours[key] == theirs[key]
            assert type(ours[key]) is type(theirs[key])
