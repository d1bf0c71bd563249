"""Test that all backends follow one protocol, and that one table entry adds a backend."""

import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch

import optgen
from optgen.optim import SGD
from optgen.runtime import backends
from optgen.runtime.backends import BACKENDS, Backend, BackendEntry, backend
from optgen.runtime.batch.batch import Batch

METHODS = [name for name in vars(Backend) if not name.startswith("_")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lowering", BACKENDS)
def test_a_backend_has_the_protocols_methods(lowering: str, method: str) -> None:
    expected = inspect.signature(getattr(Backend, method)).parameters
    actual = inspect.signature(getattr(type(backend(lowering)), method)).parameters

    assert list(actual) == list(expected)


class Descent:
    """A backend of plain gradient descent, which ignores the rule."""

    def build_or_reason(self, lowered: Any, batch: Batch) -> str:
        return "no state, please" if any(batch.states) else ""

    def prepare(self, optimizer: Any, batches: Sequence[Batch], consensus: Any) -> Any:
        def update() -> None:
            for batch in batches:
                torch._foreach_add_(batch.params, batch.grads, alpha=-batch.group["lr"])

        return update

    def begin(self, optimizer: Any, choose: Callable[[Batch], str]) -> None:
        return None

    def call(self, function: Any, batch: Batch) -> None:
        return None


@pytest.fixture
def descent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the backend `Descent` to the table."""
    module = ModuleType("descent")
    module.backend = lambda lowering: Descent()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "descent", module)
    monkeypatch.setitem(backends.BACKENDS, "descent", BackendEntry("descent", "descent", "cpu"))
    monkeypatch.setitem(backends.FUSED, "cpu", "descent")


@pytest.mark.usefixtures("descent")
def test_one_table_entry_adds_a_backend() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = SGD([param], lr=0.25)
    assert "group 0: descent: CPU tensors, float32" in optgen.explain(optimizer)

    optimizer.step()
    with optgen.use_lowering("descent"):
        optimizer.step()

    assert param.tolist() == [0.5] * 3


@pytest.mark.usefixtures("descent")
def test_a_backend_says_why_it_cannot_take_a_batch() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = SGD([param], lr=0.25, momentum=0.5)

    optimizer.step()
    assert "for-loop: no state, please" in optgen.explain(optimizer)
