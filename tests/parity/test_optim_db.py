"""Test every input and every error of torch's own tests of its fifteen classes, in every way to
step.

The tests compare trajectories in float64, state, checkpoints in both directions through files, and
error messages.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.cases import OWN, Case, steps
from parity.classes import INFOS, NAMES, PENDING, has
from parity.form import form
from parity.resume import in_two_halves
from parity.trajectories import Run, assert_close, eventful
from torch_inputs import OptimizerErrorEnum

import optgen.optim

WAYS: list[dict[str, Any]] = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
INPUTS = {
    name: [
        *(Case(name, tested.kwargs) for tested in INFOS[name].optim_inputs_func(device="cpu")),
        *(Case(name, options) for options in OWN[name]),
    ]
    for name in NAMES
}


def test_a_class_that_is_here_is_not_pending() -> None:
    assert set(PENDING) == set(INFOS) - set(NAMES)
    assert set(INFOS) | {"Optimizer"} == {n for n in torch.optim.__all__ if n[0].isupper()}


def cells() -> Iterator[Any]:
    """Yield every input with every way to step, except inputs that torch refuses too."""
    for case in chain(*INPUTS.values()):
        for way in WAYS:
            if not refused(case, way):
                yield cell(case, way)


def cells_in_turn() -> Iterator[Any]:
    """Yield every input once, with the ways to step in turn."""
    for case, way in zip(chain(*INPUTS.values()), cycle(WAYS), strict=False):
        yield cell(case, {} if refused(case, way) else way)


def refused(case: Case, way: dict[str, Any]) -> bool:
    tensor = isinstance(case.options.get("lr"), torch.Tensor)
    return case.name in ("Adam", "AdamW") and bool(way.get("foreach")) and tensor


def cell(case: Case, way: dict[str, Any]) -> Any:
    asked = case.in_double() if True in way.values() else case
    return pytest.param(asked, way, id="-".join([str(case), *way, *map(str, way.values())]))


IN_TURN = list(cells_in_turn())


def test_the_list_of_torchs_inputs_is_complete() -> None:
    """The inputs of torch's tests are all read; an empty list would pass the other tests."""
    inputs = [info.optim_inputs_func(device="cpu") for info in INFOS.values()]
    assert len(INFOS) == 15
    assert min(map(len, inputs)) >= 4
    assert sum(map(len, inputs)) >= 91


def few(case: Case) -> int:
    """Return how many steps to take; test_trajectories.py takes all, with the same inputs."""
    return min(10, steps(case))


@functools.cache
def reference(case: Case) -> Run:
    return eventful(case.theirs, few(case))


@pytest.mark.parametrize(("case", "way"), list(cells()))
def test_trajectory_and_state(case: Case, way: dict[str, Any]) -> None:
    run = eventful(functools.partial(case.ours, **way), few(case))

    assert form(run.optimizer) == form(reference(case).optimizer)
    assert_close(run, reference(case))


@functools.cache
def resumed_in_torch(case: Case, folder: Path) -> Run:
    return in_two_halves(case.theirs, case.theirs, torch.float64, folder / "theirs.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.mark.parametrize(("case", "way"), IN_TURN)
def test_torchs_checkpoint_continues_here(case: Case, way: dict[str, Any], folder: Path) -> None:
    ours = functools.partial(case.ours, **way)

    run = in_two_halves(case.theirs, ours, torch.float64, folder / "a.pt")

    assert_close(run, resumed_in_torch(case, folder))


@pytest.mark.parametrize(("case", "way"), IN_TURN)
def test_our_checkpoint_continues_in_torch(case: Case, way: dict[str, Any], folder: Path) -> None:
    ours = functools.partial(case.ours, **way)

    run = in_two_halves(ours, case.theirs, torch.float64, folder / "b.pt")

    assert_close(run, resumed_in_torch(case, folder))


def errors() -> Iterator[Any]:
    for name in NAMES:
        for case in INFOS[name].optim_error_inputs_func(device="cpu", dtype=torch.float32):
            given = case.optimizer_error_input
            for way in WAYS:
                if not set(way) & set(given.kwargs):
                    label = "-".join([name, given.desc, *way, *map(str, way.values())])
                    yield pytest.param(name, case, way, id=label)


@pytest.mark.parametrize(("name", "case", "way"), list(errors()))
def test_errors_are_torchs(name: str, case: Any, way: dict[str, Any]) -> None:
    """Each error comes in the constructor or the step, as torch's, with torch's message."""
    given = case.optimizer_error_input
    accepted = {flag: value for flag, value in way.items() if has(name, flag)}

    ours = raised(getattr(optgen.optim, name), given, way)
    theirs = raised(getattr(torch.optim, name), given, accepted)

    assert ours == theirs
    stage = "step" if case.error_on is OptimizerErrorEnum.STEP_ERROR else "constructor"
    assert ours[:2] == (stage, case.error_type)


def raised(cls: Any, given: Any, way: dict[str, Any]) -> tuple[str, type, str]:
    """Return where a class fails, and with which error."""
    params = [torch.nn.Parameter(torch.ones(1, 1))] if given.params is None else given.params
    stage = "constructor"
    try:
        optimizer = cls(params, **given.kwargs, **way)
        stage = "step"
        optimizer.step()
    except Exception as error:
        return stage, type(error), str(error)
    raise AssertionError("no error")
