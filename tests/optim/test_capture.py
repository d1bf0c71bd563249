"""Test capturable steps of every class on CPU tensors, without a read on the host."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lowerings.capture import captured
from optim.classes import (
    CLASSES,
    give_gradients,
    ours_and_torchs,
    outcome,
    parameters,
    states,
    takes,
    train,
)
from parity.cases import CASE_OF_DENSE_CLASS, CASES, Case
from parity.classes import MATRICES, NAMES, SPARSE
from torch_versions import HAS_2_13

from optgen import use_lowering

CAPTURABLE = [name for name in CLASSES if name not in SPARSE]
LOWERINGS = ("forloop", "foreach")
BOUND = 1e-6  # a float32 scalar state is rounded at other points of the step than without capturing
MATRIX_BOUND = 5e-3  # matrices are multiplied in bfloat16
CHOSEN = [c for c in CASES if c.name in CAPTURABLE and "foreach" not in c.options]
STEPS = [*((case, lowering) for case in CHOSEN for lowering in LOWERINGS)]
STEPS += [
    (CASE_OF_DENSE_CLASS.get(name, Case(name)), None) for name in CAPTURABLE
]  # None: the optimizer chooses its lowering


@pytest.mark.parametrize(("case", "lowering"), STEPS, ids=str)
def test_a_captured_step_is_the_same_step(case: Case, lowering: str | None) -> None:
    ours, plain = parameters(case.name), parameters(case.name)
    optimizer, reference = case.ours(ours, capturable=True), case.ours(plain)
    for step in range(8):
        for params in (ours, plain):
            give_gradients(case.name, params, step)
            if step == 3:
                params[1].grad = None  # step counts differ from here on
        with use_lowering("forloop"):
            reference.step()
        # The first step makes the states, before the capture.
        with use_lowering(lowering) if lowering else nullcontext(), captured(forbid_reads=step > 0):
            optimizer.step()

    scalar = any(state.shape == "scalar" for state in optimizer.rule.states)
    bound = MATRIX_BOUND if case.name in MATRICES else BOUND if scalar else 1e-12
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=bound, atol=bound)
    for (key, found), (_, expected) in zip(states(optimizer), states(reference), strict=True):
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound, msg=key)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", CAPTURABLE)
def test_a_captured_step_of_complex_parameters_is_the_same_step(name: str, lowering: str) -> None:
    case = CASE_OF_DENSE_CLASS.get(name, Case(name))
    found: list[Any] = []
    for capturable in (False, True):
        params = parameters(name, torch.complex128)
        optimizer = case.ours(params, **{"capturable": True} if capturable else {})
        for step in range(3):
            give_gradients(name, params, step)
            with use_lowering(lowering if capturable else "forloop"):
                if capturable:
                    with captured():
                        result = outcome(optimizer.step)
                else:
                    result = outcome(optimizer.step)
        found.append((result, params))

    assert found[0][0] == found[1][0]  # an error if the class takes no complex parameters
    for a, b in zip(found[1][1], found[0][1], strict=True):
        torch.testing.assert_close(a, b, rtol=BOUND, atol=BOUND)


@pytest.mark.parametrize("name", [name for name in CAPTURABLE if takes(name, "capturable")])
@pytest.mark.parametrize("flags", [{}, {"foreach": True}, {"foreach": False}], ids=str)
def test_a_device_that_cannot_capture_is_torchs_error(name: str, flags: dict[str, Any]) -> None:
    raised = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        give_gradients(name, params)
        optimizer = cls(params, capturable=True, **flags)
        raised.append(outcome(optimizer.step)[0])
        before = parameters(name)
        assert all(map(torch.equal, params, before))

    assert raised == [AssertionError, AssertionError]


@pytest.mark.skipif(not HAS_2_13, reason="torch before 2.13 asks for the accelerator otherwise")
@pytest.mark.parametrize("name", NAMES)
def test_a_capture_without_capturable_is_torchs_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = SimpleNamespace(is_capturing=lambda: True)
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: device)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda: stream)
    raised = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        optimizer = cls(params)
        raised.append(outcome(lambda o=optimizer, p=params: train(name, o, p, 1)))

    if takes(name, "capturable"):
        assert raised[0] == raised[1]
        assert raised[0][0] is RuntimeError
    assert raised[0] is None or "param_groups' capturable is False" in raised[0][1]
