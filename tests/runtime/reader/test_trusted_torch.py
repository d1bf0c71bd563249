"""Test the trial of the C++ reader, which decides whether an unknown torch has a reader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from optgen.runtime.reader import tensor_reader, trusted_torch
from optgen.runtime.reader.tensor_reader import reader


@pytest.fixture(autouse=True)
def unknown_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pretend in this process that torch has an unknown version that no trial has run on."""
    monkeypatch.delenv("OPTGEN_TENSOR_READER", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.130.0")
    monkeypatch.setattr(trusted_torch, "folders", lambda: iter([tmp_path]))
    reader.cache_clear()
    yield
    reader.cache_clear()


def replace_python(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let the trial's process run a shell script instead of Python."""
    path = folder / "stand-in"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))


def verdicts(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("*.trial")]


def test_a_torch_that_passes_has_a_reader_and_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reader() is not None
    assert verdicts(tmp_path) == ["passed\n"]

    reader.cache_clear()
    replace_python(tmp_path, monkeypatch, f"touch '{tmp_path}/started'; exit 1")
    assert reader() is not None
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("script", ["exit 1", "kill -SEGV $$"])
def test_a_torch_that_fails_has_no_reader(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_reader, "measure_layout", lambda: pytest.fail("measure_layout"))
    replace_python(tmp_path, monkeypatch, script)
    assert reader() is None
    assert verdicts(tmp_path) == ["failed\n"]


def test_a_trial_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted_torch, "_TIME_LIMIT", 0.2)
    replace_python(tmp_path, monkeypatch, "exec sleep 60")
    assert reader() is None


def test_without_a_python_to_start_there_is_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert reader() is None


def test_a_damaged_verdict_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_python(tmp_path, monkeypatch, "exit 1")
    assert reader() is None
    (damaged,) = tmp_path.glob("*.trial")
    damaged.write_text("pass")

    reader.cache_clear()
    replace_python(tmp_path, monkeypatch, "exit 0")
    assert reader() is not None
    assert verdicts(tmp_path) == ["passed\n"]


def test_no_trial_is_run_if_the_variable_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_python(tmp_path, monkeypatch, "exit 1")
    monkeypatch.setenv("OPTGEN_TENSOR_READER", "1")
    assert reader() is not None

    reader.cache_clear()
    monkeypatch.setenv("OPTGEN_TENSOR_READER", "0")
    assert reader() is None
    assert not verdicts(tmp_path)


def test_the_trial_fails_without_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTGEN_TENSOR_READER", "0")
    assert trusted_torch.main() == 1


def test_the_trial_sees_a_reader_that_reads_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial compares results with those of torch's step, so it notices other gradients."""
    monkeypatch.setenv("OPTGEN_TENSOR_READER", "1")
    give_gradients = trusted_torch._give_gradients

    def give_others(tensors: list[torch.Tensor], copies: list[torch.Tensor], step: int) -> None:
        give_gradients(tensors, copies, step)
        tensors[2].grad = torch.zeros_like(tensors[2])

    monkeypatch.setattr(trusted_torch, "_give_gradients", give_others)
    with pytest.raises(ValueError, match="step 0 has another result than torch's"):
        trusted_torch.main()
