"""Test cached steps of groups with a view: they use the view, and end when the view changes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.optim import Adafactor
from optgen.spec import Spec

# `import` would return the package's function of the same name.
cached_step = importlib.import_module("optgen.runtime.fused_cpu.cached_step")
ROW_NORM_SPEC = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def RowNorm(p, g, /, m=state("mean"), *, lr=hyper(0.1)):
    """A rule that scales each row of the update to norm 1, so the step depends on the view."""
    require(factored(p), "{shape}")
    m = 0.5 * m + g
    p = p - lr * m / row_norm(m)
'''


@cache
def row_norm_class() -> Any:
    """Return the class of the rule `RowNorm`."""
    return optgen.load(Spec("RowNorm", ROW_NORM_SPEC, "<row_norm>", 1))


@pytest.fixture
def was_repeated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which `CachedDenseStep.run` appends whether it repeated the step."""
    results: list[bool] = []
    run = cached_step.CachedDenseStep.run

    def run_and_record(self: Any, optimizer: Any) -> bool:
        results.append(run(self, optimizer))
        return results[-1]

    monkeypatch.setattr(cached_step.CachedDenseStep, "run", run_and_record)
    return results


class Pair:
    """Two optimizers that must agree: one takes fused steps, the reference takes the for-loop."""

    def __init__(self, cls: Any, *groups: dict[str, Any]) -> None:
        self.params = [
            [
                Parameter(torch.linspace(-1, 2, 24, dtype=torch.float64).reshape(4, 6))
                for _ in range(2)
            ]
            for _ in groups
        ]
        self.reference_params = [
            [Parameter(p.detach().clone()) for p in params] for params in self.params
        ]
        self.optimizer, self.reference = (
            cls([{"params": p, **group} for p, group in zip(params, groups, strict=True)], lr=0.1)
            for params in (self.params, self.reference_params)
        )

    def step(self, times: int = 1) -> None:
        """Take steps with both optimizers, and compare their parameters."""
        for number in range(times):
            for optimizer in (self.optimizer, self.reference):
                for group in optimizer.param_groups:
                    for index, param in enumerate(group["params"]):
                        param.grad = torch.cos(param.detach() * (number + index + 1))
            self.optimizer.step()
            with use_lowering("forloop"):
                self.reference.step()
        for params, references in zip(self.params, self.reference_params, strict=True):
            for param, reference in zip(params, references, strict=True):
                torch.testing.assert_close(param, reference, rtol=1e-12, atol=1e-12)

    def change(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the first group of both optimizers."""
        for optimizer in (self.optimizer, self.reference):
            change(optimizer.param_groups[0])


@pytest.mark.parametrize("cls", [Adafactor, None], ids=["Adafactor", "RowNorm"])
def test_steps_with_views_are_repeated(cls: Any, was_repeated: list[bool]) -> None:
    groups = [{"view": (2, -1, 3)}, {}, {"view": (3, 8)}, {"view": None}]
    pair = Pair(cls or row_norm_class(), *groups)
    pair.step(4)
    assert was_repeated
    assert all(was_repeated)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another view": lambda group: group.update(view=(8, 3)),
    "no view": lambda group: group.pop("view"),
    "None": lambda group: group.update(view=None),
    # The cached step compares options by identity; `tuple` of a list makes another object.
    "an equal view, another object": lambda group: group.update(view=tuple([2, -1, 3])),  # noqa: C409
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_new_view_object_ends_the_cached_step(
    change: Callable[[dict[str, Any]], object], was_repeated: list[bool]
) -> None:
    pair = Pair(row_norm_class(), {"view": (2, -1, 3)}, {})
    pair.step(3)
    was_repeated.clear()
    pair.change(change)
    pair.step()
    assert was_repeated[0] is False
    was_repeated.clear()
    pair.step(2)
    assert was_repeated == [True, True]


def test_a_view_that_takes_the_place_of_another_key_ends_the_cached_step(
    was_repeated: list[bool],
) -> None:
    """The group keeps its number of keys, but the step changes."""
    pair = Pair(row_norm_class(), {"name": "weights"})
    pair.step(3)

    def swap(group: dict[str, Any]) -> None:
        del group["name"]
        group["view"] = (12, 2)

    was_repeated.clear()
    pair.change(swap)
    pair.step()
    assert was_repeated[0] is False


def transpose(param: Tensor) -> None:
    param.data = param.data.mT.contiguous().mT


def put_gaps_between_elements(param: Tensor) -> None:
    param.data = torch.zeros(4, 12, dtype=torch.float64)[:, ::2].copy_(param.data)


@pytest.mark.parametrize("change", [transpose, put_gaps_between_elements])
def test_memory_that_is_not_contiguous_ends_the_cached_step(
    change: Callable[[Tensor], None], was_repeated: list[bool]
) -> None:
    pair = Pair(row_norm_class(), {"view": (2, -1, 3)})
    pair.step(3)
    change(pair.params[0][1])
    was_repeated.clear()
    pair.step(2)
    assert not any(was_repeated)
    pair.params[0][1].data = pair.params[0][1].data.contiguous()
    pair.step(3)
    assert was_repeated[-1] is True


def test_steps_are_repeated_after_a_parameter_is_replaced_by_one_of_another_shape(
    was_repeated: list[bool],
) -> None:
    pair = Pair(row_norm_class(), {"view": (2, -1, 3)})
    pair.step(3)
    for params, optimizer in (
        (pair.params, pair.optimizer),
        (pair.reference_params, pair.reference),
    ):
        params[0][0] = Parameter(torch.linspace(-1, 1, 60, dtype=torch.float64))
        optimizer.param_groups[0]["params"][0] = params[0][0]
    pair.step(3)
    assert was_repeated[-1] is True
