"""Test every input and every error of torch's own tests of its fifteen classes, with each flag.

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
from parity.describe_state import describe_state
from parity.resume import in_two_halves
from parity.trajectories import Run, assert_close, eventful
from torch_inputs import OptimizerErrorEnum

import optgen.optim

FLAGS: list[dict[str, Any]] = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
INPUTS = {
    name: [
        *(Case(name, tested.kwargs) for tested in INFOS[name].optim_inputs_func(device="cpu")),
        *(Case(name, options) for options in OWN[name]),
    ]
    for name in NAMES
}


def test_every_class_of_torch_is_here_or_pending() -> None:
    assert set(PENDING) == set(INFOS) - set(NAMES)
    assert set(INFOS) | {"Optimizer"} == {n for n in torch.optim.__all__ if n[0].isupper()}


def cells() -> Iterator[Any]:
    """Yield every input with all flags, except inputs that torch also refuses."""
    for case in chain(*INPUTS.values()):
        for flags in FLAGS:
            if not is_refused(case, flags):
                yield cell(case, flags)


def cells_in_turn() -> Iterator[Any]:
    """Yield every input once, with one of the flags in turn."""
    for case, flags in zip(chain(*INPUTS.values()), cycle(FLAGS), strict=False):
        yield cell(case, {} if is_refused(case, flags) else flags)


def is_refused(case: Case, flags: dict[str, Any]) -> bool:
    tensor = isinstance(case.options.get("lr"), torch.Tensor)
    return case.name in ("Adam", "AdamW") and bool(flags.get("foreach")) and tensor


def cell(case: Case, flags: dict[str, Any]) -> Any:
    exact = case.in_double() if True in flags.values() else case
    return pytest.param(exact, flags, id="-".join([str(case), *flags, *map(str, flags.values())]))


IN_TURN = list(cells_in_turn())


def test_the_list_of_torchs_inputs_is_complete() -> None:
    """The inputs of torch's tests are all read; an empty list would pass the other tests."""
    inputs = [info.optim_inputs_func(device="cpu") for info in INFOS.values()]
    assert len(INFOS) == 15
    assert min(map(len, inputs)) >= 4
    assert sum(map(len, inputs)) >= 91


def step_count(case: Case) -> int:
    """Return how many steps to take; test_trajectories.py takes all, with the same inputs."""
    return min(10, steps(case))


@functools.cache
def reference(case: Case) -> Run:
    return eventful(case.theirs, step_count(case))


@pytest.mark.parametrize(("case", "flags"), list(cells()))
def test_trajectory_and_state_are_torchs(case: Case, flags: dict[str, Any]) -> None:
    run = eventful(functools.partial(case.ours, **flags), step_count(case))

    assert describe_state(run.optimizer) == describe_state(reference(case).optimizer)
    assert_close(run, reference(case))


@functools.cache
def resumed_in_torch(case: Case, folder: Path) -> Run:
    return in_two_halves(case.theirs, case.theirs, torch.float64, folder / "theirs.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("case", "flags"), IN_TURN)
def test_torchs_checkpoint_continues_here(case: Case, flags: dict[str, Any], folder: Path) -> None:
    ours = functools.partial(case.ours, **flags)

    run = in_two_halves(case.theirs, ours, torch.float64, folder / "a.pt")

    assert_close(run, resumed_in_torch(case, folder))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("case", "flags"), IN_TURN)
def test_our_checkpoint_continues_in_torch(case: Case, flags: dict[str, Any], folder: Path) -> None:
    ours = functools.partial(case.ours, **flags)

    run = in_two_halves(ours, case.theirs, torch.float64, folder / "b.pt")

    assert_close(run, resumed_in_torch(case, folder))


def errors() -> Iterator[Any]:
    for name in NAMES:
        for case in INFOS[name].optim_error_inputs_func(device="cpu", dtype=torch.float32):
            error_input = case.optimizer_error_input
            for flags in FLAGS:
                if not set(flags) & set(error_input.kwargs):
                    label = "-".join([name, error_input.desc, *flags, *map(str, flags.values())])
                    yield pytest.param(name, case, flags, id=label)


@pytest.mark.parametrize(("name", "case", "flags"), list(errors()))
def test_errors_are_torchs(name: str, case: Any, flags: dict[str, Any]) -> None:
    """Each error has torch's message, and comes in the constructor or the step as torch's."""
    error_input = case.optimizer_error_input
    accepted = {flag: value for flag, value in flags.items() if has(name, flag)}

    ours = raised(getattr(optgen.optim, name), error_input, flags)
    theirs = raised(getattr(torch.optim, name), error_input, accepted)

    assert ours == theirs
    stage = "step" if case.error_on is OptimizerErrorEnum.STEP_ERROR else "constructor"
    assert ours[:2] == (stage, case.error_type)


def raised(cls: Any, error_input: Any, flags: dict[str, Any]) -> tuple[str, type, str]:
    """Return (stage at which a class fails, the error's type, its message)."""
    params = (
        [torch.nn.Parameter(torch.ones(1, 1))] if error_input.params is None else error_input.params
    )
    stage = "constructor"
    try:
        optimizer = cls(params, **error_input.kwargs, **flags)
        stage = "step"
        optimizer.step()
    except Exception as error:
        return stage, type(error), str(error)
    raise AssertionError("no error")
