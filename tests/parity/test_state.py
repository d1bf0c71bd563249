"""Test that state and groups are torch's: keys, order, dtypes, shapes, devices, group values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from parity.cases import CASE_OF_CLASS, Case, forced
from parity.classes import CLOSURE, NAMES, PLAIN, has
from parity.describe_state import describe_state
from parity.trajectories import Run, parameters, shapes_for, through, train
from torch.optim import Optimizer

ADDED = ["maximize", "foreach", "fused", "capturable", "differentiable"]
FLAGS: list[dict[str, Any]] = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
CASES = [*(Case(name) for name in NAMES), *CASE_OF_CLASS.values()]


def trained(optimizer: Optimizer, params: list[torch.Tensor]) -> Optimizer:
    train(Run(optimizer, params), 2)
    return optimizer


def params_of(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    params = parameters(shapes_for(case.name), dtype)
    if case.name in PLAIN:
        strided = torch.ones(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last)
        params.append(torch.nn.Parameter(strided))
    return params


def accepted_by_torch(case: Case, flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags that torch's class also has."""
    return {key: value for key, value in flags.items() if has(case.name, key)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_state_is_torchs(case: Case, flags: dict[str, Any], dtype: torch.dtype) -> None:
    if case.name in CLOSURE and dtype.itemsize == 2:
        pytest.skip("ours keeps the history of 16-bit parameters in float32")
    ours, theirs = params_of(case, dtype), params_of(case, dtype)

    optimizer = trained(case.ours(ours, **flags), ours)
    reference = trained(case.theirs(theirs, **accepted_by_torch(case, flags)), theirs)

    assert describe_state(optimizer) == describe_state(reference)
    assert optimizer.state or case.name == "SGD"


@pytest.mark.parametrize(("case", "lowering"), forced(CASE_OF_CLASS.values()))
def test_a_forced_lowering_leaves_torchs_state(case: Case, lowering: str) -> None:
    ours, theirs = params_of(case, torch.float32), params_of(case, torch.float32)

    with through(lowering):
        optimizer = trained(case.ours(ours), ours)
    reference = trained(case.theirs(theirs), theirs)

    assert describe_state(optimizer) == describe_state(reference)


@pytest.fixture
def double_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_scalars_follow_the_default_dtype(case: Case, flags: dict[str, Any]) -> None:
    """With fused=True, scalars are float32 in torch and in ours."""
    if flags != accepted_by_torch(case, flags):
        pytest.skip("torch has no fused kernel")
    ours, theirs = params_of(case, torch.float32), params_of(case, torch.float32)

    optimizer = trained(case.ours(ours, **flags), ours)
    reference = trained(case.theirs(theirs, **accepted_by_torch(case, flags)), theirs)

    assert describe_state(optimizer) == describe_state(reference)


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("case", CASE_OF_CLASS.values(), ids=str)
def test_scalars_in_double_precision_advance_as_torchs(case: Case) -> None:
    ours, theirs = params_of(case, torch.float64), params_of(case, torch.float64)

    optimizer = trained(case.ours(ours), ours)
    reference = trained(case.theirs(theirs), theirs)

    for a, b in zip(optimizer.state.values(), reference.state.values(), strict=True):
        for key in set(a) & {"step", "mu_product", "eta", "mu"}:
            assert a[key] == b[key]


@pytest.mark.parametrize("case", CASE_OF_CLASS.values(), ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_state_after_a_load_is_torchs(case: Case, dtype: torch.dtype) -> None:
    """Loading casts as torch does: float32 scalars but `step` get a 16-bit parameter's dtype."""
    if case.name in CLOSURE and dtype.itemsize == 2:
        pytest.skip("ours keeps the history of 16-bit parameters in float32")
    theirs = params_of(case, dtype)
    saved = trained(case.theirs(theirs), theirs).state_dict()
    optimizer, reference = case.ours(params_of(case, dtype)), case.theirs(params_of(case, dtype))

    optimizer.load_state_dict(saved)
    reference.load_state_dict(saved)

    assert describe_state(optimizer) == describe_state(reference)
    for params, loaded in (
        (optimizer.param_groups[0]["params"], optimizer),
        (reference.param_groups[0]["params"], reference),
    ):
        trained(loaded, params)
    assert describe_state(optimizer) == describe_state(reference)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_groups_are_torchs(case: Case, flags: dict[str, Any]) -> None:
    """Groups have torch's keys, order and values; keys that torch lacks come last."""
    optimizer = case.ours(params_of(case, torch.float32), **flags)
    default = {"foreach": None} if has(case.name, "foreach") else {}
    reference = case.theirs(
        params_of(case, torch.float32), **{**default, **accepted_by_torch(case, flags)}
    )

    for described in (lambda o: o.param_groups[0], lambda o: o.defaults):
        ours, theirs = described(optimizer), described(reference)
        assert list(ours)[: len(theirs)] == list(theirs)
        added = list(ours)[len(theirs) :]
        assert added == [key for key in ADDED if key in added]
        for key in itertools.filterfalse({"params"}.__contains__, theirs):
            assert ours[key] == theirs[key]
            assert type(ours[key]) is type(theirs[key])
