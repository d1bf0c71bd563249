"""Test scheduler classes: torch's names, signatures and bases, and subclasses of users."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from optim.lr_scheduler.schedules import OURS, TORCH, optimizer_of, take_steps, warnings_and_error
from torch.nn import Parameter

import optgen.optim
from optgen.optim import lr_scheduler, swa_utils

NAMES = [*torch.optim.lr_scheduler.__all__, "_LRScheduler", "SWALR"]
METHODS = ("step", "state_dict", "load_state_dict", "get_lr", "get_last_lr", "recursive_undo")


def parameters(function: Any) -> list[Any]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", NAMES)
def test_a_class_has_torchs_interface(name: str) -> None:
    mine, theirs = getattr(OURS, name), getattr(TORCH, name)

    assert mine is not theirs
    assert parameters(mine) == parameters(theirs)
    assert mine.__name__ == name
    assert mine.__module__ == theirs.__module__.replace("torch.", "optgen.")
    assert getattr(importlib.import_module(mine.__module__), name) is mine
    assert pickle.loads(pickle.dumps(mine)) is mine
    assert issubclass(mine, torch.optim.lr_scheduler.LRScheduler)
    assert issubclass(mine, lr_scheduler.LRScheduler)
    assert mine.__doc__
    for method in METHODS:
        if hasattr(theirs, method):
            assert parameters(getattr(mine, method)) == parameters(getattr(theirs, method)), method


@pytest.mark.parametrize("name", NAMES)
def test_a_class_has_a_closed_form_if_torchs_has_one(name: str) -> None:
    mine, theirs = getattr(OURS, name), getattr(TORCH, name)

    assert hasattr(mine, "_get_closed_form_lr") == hasattr(theirs, "_get_closed_form_lr")


def test_the_modules_have_torchs_names() -> None:
    assert set(torch.optim.lr_scheduler.__all__) < set(lr_scheduler.__all__)
    assert set(torch.optim.swa_utils.__all__) == set(swa_utils.__all__)
    assert all(hasattr(lr_scheduler, name) for name in lr_scheduler.__all__)
    assert issubclass(lr_scheduler._LRScheduler, torch.optim.lr_scheduler._LRScheduler)
    text = torch.optim.lr_scheduler.EPOCH_DEPRECATION_WARNING
    assert text == lr_scheduler.EPOCH_DEPRECATION_WARNING


@pytest.mark.parametrize("library", [OURS, TORCH], ids=["ours", "torch"])
def test_a_subclass_of_the_user_works(library: Any) -> None:
    """`get_lr`, attributes and a closed form work with our base class as with torch's."""

    class Warmup(library.LRScheduler):
        def __init__(self, optimizer: Any, steps: int, last_epoch: int = -1) -> None:
            self.steps = steps
            super().__init__(optimizer, last_epoch)

        def get_lr(self) -> list[float]:
            assert self._get_lr_called_within_step
            factor = min(1.0, self._step_count / self.steps)
            return [base * factor for base in self.base_lrs]

        def _get_closed_form_lr(self) -> list[float]:
            return [base * min(1.0, (self.last_epoch + 1) / self.steps) for base in self.base_lrs]

    scheduler = Warmup(optimizer_of(lr=1.0), 4)
    rates = [rate for rate, _ in take_steps(scheduler, 4)]
    (warning,) = warnings_and_error(lambda: scheduler.step(0))

    assert rates == [0.5, 0.75, 1.0, 1.0]
    assert scheduler.get_last_lr() == [0.25]
    assert "epoch parameter" in warning
    assert scheduler.state_dict()["steps"] == 4


@pytest.mark.parametrize(
    "schedulers", [torch.optim, optgen.optim], ids=["torch-schedulers", "our-schedulers"]
)
@pytest.mark.parametrize(
    "optim", [torch.optim, optgen.optim], ids=["torch-optimizer", "our-optimizer"]
)
def test_schedulers_of_either_library_drive_optimizers_of_either(
    schedulers: Any, optim: Any
) -> None:
    """Training with each of the four pairs ends at the same parameters."""
    param = Parameter(torch.linspace(-1, 2, 7, dtype=torch.float64))
    optimizer = optim.Adam([param], lr=0.1)
    scheduler = schedulers.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=40)
    for _ in range(40):
        param.grad = (param**3 + param).detach()
        optimizer.step()
        scheduler.step()

    torch.testing.assert_close(
        param.detach().sum().item(), SUM_AFTER_TRAINING, rtol=1e-9, atol=1e-12
    )


def sum_after_training() -> float:
    """Return the sum of the parameters after the same training, with Adam by hand."""
    param = torch.linspace(-1, 2, 7, dtype=torch.float64)
    m, v = torch.zeros(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    scheduler = TORCH.OneCycleLR(optimizer_of(name="Adam"), 0.3, total_steps=40)
    for step in range(1, 41):
        (group,) = scheduler.optimizer.param_groups
        beta1, beta2 = group["betas"]
        grad = param**3 + param
        m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
        denominator = (v / (1 - beta2**step)).sqrt() + 1e-8
        param = param - group["lr"] * m / (1 - beta1**step) / denominator
        scheduler.optimizer.step()
        scheduler.step()
    return float(param.sum())


SUM_AFTER_TRAINING = sum_after_training()


def gallery_module() -> Any:
    """Return examples/schedulers.py as a module."""
    path = Path(__file__).parents[3] / "examples" / "schedulers.py"
    spec = importlib.util.spec_from_file_location("gallery", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gallery_and_the_page_have_every_class() -> None:
    gallery = gallery_module()
    page = Path(__file__).parents[3] / "docs" / "schedulers.md"
    not_schedules = {"LRScheduler", "ShapedLR", "preview"}
    names = {*lr_scheduler.__all__, "SWALR"} - not_schedules

    assert names <= set(gallery.GALLERY)
    assert [name for name in names if f"`{name}`" not in page.read_text(encoding="utf-8")] == []
    for name in gallery.GALLERY:
        rates = gallery.rates(name)
        assert len(rates) == 100
        assert 0 <= min(rates) < max(rates) <= 1
