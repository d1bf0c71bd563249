"""State and groups are torch's: keys, order, dtypes, shapes, devices, values of the groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from parity.cases import FULL, LOWERINGS, NAMES, Case
from parity.trajectories import Run, parameters, through, train
from torch.optim import Optimizer

ADDED = ["maximize", "foreach", "fused", "capturable", "differentiable"]
WAYS: list[dict[str, Any]] = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
EVERY = [*(Case(name) for name in NAMES), *FULL.values()]


def form(optimizer: Optimizer) -> list[list[tuple[str, Any]]]:
    """What a state is, but for its numbers."""
    return [
        [
            (key, (v.dtype, v.shape, v.stride(), v.device, v.requires_grad))
            for key, v in entry.items()
        ]
        for entry in optimizer.state.values()
    ]


def trained(optimizer: Optimizer, params: list[torch.Tensor]) -> Optimizer:
    train(Run(optimizer, params), 2)
    return optimizer


def params_of(dtype: torch.dtype) -> list[torch.Tensor]:
    channels_last = torch.ones(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last)
    shapes = ((3, 4), (), (0,))
    return [*parameters(shapes, dtype), torch.nn.Parameter(channels_last)]


def accepted_by_torch(case: Case, way: dict[str, Any]) -> dict[str, Any]:
    """Torch's own argument, where it has it."""
    has = case.name in ("SGD", "Adam", "AdamW")
    return {key: value for key, value in way.items() if key != "fused" or has}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_state_is_torchs(case: Case, way: dict[str, Any], dtype: torch.dtype) -> None:
    ours, theirs = params_of(dtype), params_of(dtype)

    optimizer = trained(case.ours(ours, **way), ours)
    reference = trained(case.theirs(theirs, **accepted_by_torch(case, way)), theirs)

    assert form(optimizer) == form(reference)
    assert ours[0] in optimizer.state or case.name == "SGD"


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("case", FULL.values(), ids=str)
def test_a_forced_lowering_leaves_torchs_state(case: Case, lowering: str) -> None:
    ours, theirs = params_of(torch.float32), params_of(torch.float32)

    with through(lowering):
        optimizer = trained(case.ours(ours), ours)
    reference = trained(case.theirs(theirs), theirs)

    assert form(optimizer) == form(reference)


@pytest.fixture
def double_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_scalars_follow_the_default_dtype(case: Case, way: dict[str, Any]) -> None:
    """Not with fused=True, in torch; so not in classes either that are fused only here."""
    if way != accepted_by_torch(case, way):
        pytest.skip("torch has no fused kernel")
    ours, theirs = params_of(torch.float32), params_of(torch.float32)

    optimizer = trained(case.ours(ours, **way), ours)
    reference = trained(case.theirs(theirs, **accepted_by_torch(case, way)), theirs)

    assert form(optimizer) == form(reference)


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("case", FULL.values(), ids=str)
def test_scalars_in_double_precision_advance_as_torchs(case: Case) -> None:
    ours, theirs = params_of(torch.float64), params_of(torch.float64)

    optimizer = trained(case.ours(ours), ours)
    reference = trained(case.theirs(theirs), theirs)

    for a, b in zip(optimizer.state.values(), reference.state.values(), strict=True):
        for key in set(a) & {"step", "mu_product"}:
            assert a[key] == b[key]


@pytest.mark.parametrize("case", FULL.values(), ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_state_after_a_load_is_torchs(case: Case, dtype: torch.dtype) -> None:
    """Torch's cast included: 16-bit parameters turn float32 scalars but `step` into their dtype."""
    theirs = params_of(dtype)
    saved = trained(case.theirs(theirs), theirs).state_dict()
    optimizer, reference = case.ours(params_of(dtype)), case.theirs(params_of(dtype))

    optimizer.load_state_dict(saved)
    reference.load_state_dict(saved)

    assert form(optimizer) == form(reference)
    for params, loaded in (
        (optimizer.param_groups[0]["params"], optimizer),
        (reference.param_groups[0]["params"], reference),
    ):
        trained(loaded, params)
    assert form(optimizer) == form(reference)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_groups_are_torchs(case: Case, way: dict[str, Any]) -> None:
    """Same keys in the same order, same values; what torch lacks stands last."""
    optimizer = case.ours(params_of(torch.float32), **way)
    reference = case.theirs(
        params_of(torch.float32), **{"foreach": None, **accepted_by_torch(case, way)}
    )

    for described in (lambda o: o.param_groups[0], lambda o: o.defaults):
        ours, theirs = described(optimizer), described(reference)
        assert list(ours)[: len(theirs)] == list(theirs)
        added = list(ours)[len(theirs) :]
        assert added == [key for key in ADDED if key in added]
        for key in itertools.filterfalse({"params"}.__contains__, theirs):
            assert ours[key] == theirs[key]
            assert type(ours[key]) is type(theirs[key])
