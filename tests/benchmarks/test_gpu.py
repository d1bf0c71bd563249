"""What the benchmark on a GPU will call, on the CPU: every class, its arguments, its tensors."""

import pytest
import torch

import optgen.optim
from benchmarks import gpu, gpu_checks, gpu_speed
from benchmarks.classes import CLASSES
from optgen.runtime import GeneratedOptimizer


def test_every_class_with_dense_gradients_is_measured() -> None:
    kinds = {n: getattr(optgen.optim, n) for n in optgen.optim.__all__}
    ours = {
        n for n, k in kinds.items() if isinstance(k, type) and issubclass(k, GeneratedOptimizer)
    }
    assert ours - set(CLASSES) <= {"SparseAdam"}
    assert set(gpu_checks.SETTINGS) <= set(CLASSES)
    assert callable(gpu.main)


@pytest.mark.parametrize("name", CLASSES)
def test_checks_can_be_made_of_every_class(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "DEVICE", "cpu")
    for settings in gpu_checks.settings_of(name):
        error, bound = gpu_checks.trajectory(name, settings, torch.float64, "forloop", 2)
        assert error <= bound
    assert gpu_speed.least_streams(name) >= 3


def test_a_class_without_settings_of_its_own_is_checked_with_weight_decay() -> None:
    assert gpu_checks.settings_of("NAdam") == [{}, {"weight_decay": 0.1}]
