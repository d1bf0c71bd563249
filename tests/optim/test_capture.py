"""Test that capturable steps of every class, here on CPU tensors, read no value on the host."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lowerings.capture import capture_on_cpu
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
from parity.classes import MATRIX_CLASSES, NAMES, SPARSE_CLASSES
from torch_versions import HAS_2_13

from optgen import use_lowering

CAPTURABLE = [name for name in CLASSES if name not in SPARSE_CLASSES]
LOWERINGS = ("forloop", "foreach")
BOUND = 1e-6  # a captured step rounds a float32 scalar state after other operations
MATRIX_BOUND = 5e-3  # matrices are multiplied in bfloat16
CAPTURABLE_CASES = [c for c in CASES if c.name in CAPTURABLE and "foreach" not in c.options]
CASES_AND_LOWERINGS = [(case, lowering) for case in CAPTURABLE_CASES for lowering in LOWERINGS]
# None: the optimizer chooses its lowering.
CASES_AND_LOWERINGS += [(CASE_OF_DENSE_CLASS.get(name, Case(name)), None) for name in CAPTURABLE]


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize(("case", "lowering"), CASES_AND_LOWERINGS, ids=str)
def test_captured_steps_equal_plain_steps(case: Case, lowering: str | None) -> None:
    params_of_captured, plain_params = parameters(case.name), parameters(case.name)
    optimizer, plain = case.ours(params_of_captured, capturable=True), case.ours(plain_params)
    for step in range(8):
        for params in (params_of_captured, plain_params):
            give_gradients(case.name, params, step)
            if step == 3:
                params[1].grad = None  # step counts differ from here on
        with use_lowering("forloop"):
            plain.step()
        # The first step creates the states, so it may read.
        with (
            use_lowering(lowering) if lowering else nullcontext(),
            capture_on_cpu(forbid_host_reads=step > 0),
        ):
            optimizer.step()

    has_scalar_states = any(state.shape == "scalar" for state in optimizer.rule.states)
    bound = BOUND if has_scalar_states else 1e-12
    if case.name in MATRIX_CLASSES:
        bound = MATRIX_BOUND
    torch.testing.assert_close(params_of_captured, plain_params, rtol=bound, atol=bound)
    for (key, found), (_, expected) in zip(states(optimizer), states(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound, msg=key)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", CAPTURABLE)
def test_captured_steps_of_complex_parameters_equal_plain_steps(name: str, lowering: str) -> None:
    case = CASE_OF_DENSE_CLASS.get(name, Case(name))
    results: list[Any] = []
    for capturable in (False, True):
        params = parameters(name, torch.complex128)
        optimizer = case.ours(params, **{"capturable": True} if capturable else {})
        for step in range(3):
            give_gradients(name, params, step)
            capture = capture_on_cpu() if capturable else nullcontext()
            with use_lowering(lowering if capturable else "forloop"), capture:
                result = outcome(optimizer.step)
        results.append((result, params))

    (plain_result, plain_params), (captured_result, captured_params) = results
    assert captured_result == plain_result  # an error if the class takes no complex parameters
    torch.testing.assert_close(captured_params, plain_params, rtol=BOUND, atol=BOUND)


@pytest.mark.parametrize("name", [name for name in CAPTURABLE if takes(name, "capturable")])
@pytest.mark.parametrize("flags", [{}, {"foreach": True}, {"foreach": False}], ids=str)
def test_a_device_that_cannot_capture_raises_torchs_error(name: str, flags: dict[str, Any]) -> None:
    outcomes = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        give_gradients(name, params)
        optimizer = cls(params, capturable=True, **flags)
        outcomes.append(outcome(optimizer.step)[0])
        before = parameters(name)
        assert all(map(torch.equal, params, before))

    assert outcomes == [AssertionError, AssertionError]


@pytest.mark.skipif(not HAS_2_13, reason="torch before 2.13 asks for the accelerator otherwise")
@pytest.mark.parametrize("name", NAMES)
def test_a_capture_without_capturable_raises_torchs_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = SimpleNamespace(is_capturing=lambda: True)
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: device)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda: stream)
    outcomes = []
    for cls in ours_and_torchs(name):
        params = parameters(name)
        optimizer = cls(params)
        outcomes.append(outcome(lambda o=optimizer, p=params: train(name, o, p, 1)))

    if takes(name, "capturable"):
        assert outcomes[0] == outcomes[1]
        assert outcomes[0][0] is RuntimeError
    assert outcomes[0] is None or "param_groups' capturable is False" in outcomes[0][1]
