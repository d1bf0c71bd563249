"""Test that a step whose backend refuses it, while it prepares, goes through another lowering."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import optgen
import optgen.optim
from optgen.generated.averaging.ema import ema
from optgen.runtime.batch.step_context import Refusal
from optgen.runtime.fused_cpu.backend import FusedCpuBackend


class _Refusing:
    """Lets the C++ backend refuse each step that it was chosen for, until it has refused one."""

    def __init__(self) -> None:
        self.why, self.count = "", 0

    def build_or_reason(self, *arguments: Any) -> str:
        return self.why

    def refuse(self, *arguments: Any) -> None:
        self.why = "its kernels do not compile"
        self.count += 1
        raise Refusal(self.why)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> _Refusing:
    """A C++ backend that finds out in `prepare`, or in a function's `call`, that it cannot step."""
    state = _Refusing()
    monkeypatch.setattr(FusedCpuBackend, "begin", lambda *_: None)
    monkeypatch.setattr(FusedCpuBackend, "build_or_reason", state.build_or_reason)
    for method in ("prepare", "call", "wide_updates"):
        monkeypatch.setattr(FusedCpuBackend, method, state.refuse)
    return state


def _params() -> list[Tensor]:
    return [torch.full((5, 4), value, requires_grad=True) for value in (1.0, 2.0)]


def _train(cls: Any, steps: int, **options: Any) -> tuple[torch.optim.Optimizer, list[Tensor]]:
    params = _params()
    optimizer = cls(params, **options)
    for step in range(steps):
        for index, param in enumerate(params):
            param.grad = torch.full_like(param, step + index - 0.5)
        optimizer.step()
    return optimizer, params


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "Prodigy"])
def test_a_refused_step_takes_another_lowering(name: str, refusing: _Refusing) -> None:
    cls = getattr(optgen.optim, name)
    optimizer, params = _train(cls, 3)
    _, expected = _train(cls, 3)  # the backend gives its obstacle at once

    assert refusing.count == 1
    assert "its kernels do not compile" in optgen.explain(optimizer)
    assert all(map(torch.equal, params, expected))


def test_a_refused_step_that_was_asked_for_changes_nothing(refusing: _Refusing) -> None:
    params = _params()
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = optgen.optim.AdamW(params, fused=True)
    with pytest.raises(RuntimeError, match="cannot take a step: its kernels do not compile"):
        optimizer.step()

    assert all(map(torch.equal, params, _params()))
    assert not any(optimizer.state.values())


def test_a_refused_list_function_takes_another_lowering(
    refusing: _Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = vars(sys.modules[ema.__module__])["_update"]
    monkeypatch.setattr(update, "_cached", {})  # another test may have called it
    averages = [torch.zeros(4)]
    for _ in range(2):
        ema(averages, [torch.ones(4)], decay=0.5)

    assert refusing.count == 1
    assert averages[0].tolist() == [0.75] * 4
