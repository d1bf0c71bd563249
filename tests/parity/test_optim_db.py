"""Test every input and error of torch's own tests of its fifteen classes, with each flag.

The tests compare with torch: trajectories in float64, states, error messages, and trainings that
continue from a checkpoint file, ours in torch's class and the other way round.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.cases import OWN_OPTIONS, Case, step_count
from parity.classes import INFOS, NAMES, PENDING, torch_has_flag
from parity.describe_state import describe_state
from parity.resume import train_in_two_halves
from parity.trajectories import Run, assert_close, train_with_events
from torch_inputs import OptimizerErrorEnum

import optgen.optim

FLAGS: list[dict[str, Any]] = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}]
INPUTS = {
    name: [
        *(
            Case(name, optim_input.kwargs)
            for optim_input in INFOS[name].optim_inputs_func(device="cpu")
        ),
        *(Case(name, options) for options in OWN_OPTIONS[name]),
    ]
    for name in NAMES
}


def test_optgen_has_every_class_of_torch_that_is_not_pending() -> None:
    assert set(PENDING) == set(INFOS) - set(NAMES)
    assert set(INFOS) | {"Optimizer"} == {n for n in torch.optim.__all__ if n[0].isupper()}


def inputs_with_all_flags() -> Iterator[Any]:
    """Yield every input with each of the flags, except pairs that torch and ours refuse."""
    for case in chain(*INPUTS.values()):
        for flags in FLAGS:
            if not is_refused(case, flags):
                yield parameter_set(case, flags)


def inputs_with_flags_in_turn() -> Iterator[Any]:
    """Yield every input once. The flags take turns."""
    for case, flags in zip(chain(*INPUTS.values()), cycle(FLAGS), strict=False):
        yield parameter_set(case, {} if is_refused(case, flags) else flags)


def is_refused(case: Case, flags: dict[str, Any]) -> bool:
    lr_is_tensor = isinstance(case.options.get("lr"), torch.Tensor)
    return case.name in ("Adam", "AdamW") and bool(flags.get("foreach")) and lr_is_tensor


def parameter_set(case: Case, flags: dict[str, Any]) -> Any:
    exact = case.with_float64_tensors() if True in flags.values() else case
    return pytest.param(exact, flags, id="-".join([str(case), *flags, *map(str, flags.values())]))


INPUTS_IN_TURN = list(inputs_with_flags_in_turn())


def test_torch_has_inputs_for_all_its_classes() -> None:
    """With an empty list of inputs the other tests would pass."""
    inputs = [info.optim_inputs_func(device="cpu") for info in INFOS.values()]
    assert len(INFOS) == 15
    assert min(map(len, inputs)) >= 4
    assert sum(map(len, inputs)) >= 91


def count_of_first_steps(case: Case) -> int:
    """Return how many steps to take; test_trajectories.py takes more, with the same inputs."""
    return min(10, step_count(case))


@functools.cache
def reference(case: Case) -> Run:
    return train_with_events(case.theirs, count_of_first_steps(case))


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize(("case", "flags"), list(inputs_with_all_flags()))
def test_trajectory_and_state_equal_torchs(case: Case, flags: dict[str, Any]) -> None:
    run = train_with_events(functools.partial(case.ours, **flags), count_of_first_steps(case))

    assert describe_state(run.optimizer) == describe_state(reference(case).optimizer)
    assert_close(run, reference(case))


@functools.cache
def torchs_two_halves(case: Case, folder: Path) -> Run:
    return train_in_two_halves(case.theirs, case.theirs, torch.float64, folder / "theirs.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize(("case", "flags"), INPUTS_IN_TURN)
def test_our_class_continues_from_torchs_checkpoint(
    case: Case, flags: dict[str, Any], folder: Path
) -> None:
    ours = functools.partial(case.ours, **flags)

    run = train_in_two_halves(case.theirs, ours, torch.float64, folder / "a.pt")

    assert_close(run, torchs_two_halves(case, folder))


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize(("case", "flags"), INPUTS_IN_TURN)
def test_torchs_class_continues_from_our_checkpoint(
    case: Case, flags: dict[str, Any], folder: Path
) -> None:
    ours = functools.partial(case.ours, **flags)

    run = train_in_two_halves(ours, case.theirs, torch.float64, folder / "b.pt")

    assert_close(run, torchs_two_halves(case, folder))


def error_inputs() -> Iterator[Any]:
    for name in NAMES:
        for case in INFOS[name].optim_error_inputs_func(device="cpu", dtype=torch.float32):
            error_input = case.optimizer_error_input
            for flags in FLAGS:
                if not set(flags) & set(error_input.kwargs):
                    label = "-".join([name, error_input.desc, *flags, *map(str, flags.values())])
                    yield pytest.param(name, case, flags, id=label)


@pytest.mark.parametrize(("name", "case", "flags"), list(error_inputs()))
def test_errors_equal_torchs(name: str, case: Any, flags: dict[str, Any]) -> None:
    """Each error has torch's message, and torch's class raises it at the same stage.

    A hint may follow in a line of its own.
    """
    error_input = case.optimizer_error_input
    accepted = {flag: value for flag, value in flags.items() if torch_has_flag(name, flag)}

    ours = stage_and_error(getattr(optgen.optim, name), error_input, flags)
    theirs = stage_and_error(getattr(torch.optim, name), error_input, accepted)

    assert ours == theirs
    stage = "step" if case.error_on is OptimizerErrorEnum.STEP_ERROR else "constructor"
    assert ours[:2] == (stage, case.error_type)


def stage_and_error(cls: Any, error_input: Any, flags: dict[str, Any]) -> tuple[str, type, str]:
    """Return (stage at which a class raises an error, the error's type, its message)."""
    params = (
        [torch.nn.Parameter(torch.ones(1, 1))] if error_input.params is None else error_input.params
    )
    stage = "constructor"
    try:
        optimizer = cls(params, **error_input.kwargs, **flags)
        stage = "step"
        optimizer.step()
    except Exception as error:
        return stage, type(error), str(error).partition("\nhint: ")[0]
    raise AssertionError("no error")
