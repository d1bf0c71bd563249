"""Test the parts of the GPU benchmark that run without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import outside_interpreter

import optgen.optim
from benchmarks import gpu, gpu_cases, gpu_checks, gpu_speed
from benchmarks.classes import CLASSES
from benchmarks.gpu_results import Results
from optgen.runtime import GeneratedOptimizer


def test_every_class_with_dense_gradients_is_measured() -> None:
    public = {name: getattr(optgen.optim, name) for name in optgen.optim.__all__}
    ours = {
        n for n, c in public.items() if isinstance(c, type) and issubclass(c, GeneratedOptimizer)
    }
    assert ours - set(CLASSES) <= {"SparseAdam"}
    assert set(gpu_cases.SETTINGS) <= set(CLASSES)
    checks = gpu_checks.situation_checks(CLASSES) | gpu_checks.trajectory_checks(CLASSES)
    assert {title.split()[0] for title in checks} == {*CLASSES, "SparseAdam"}


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_passes_its_checks_on_the_cpu(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_cases, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_checks, "STEPS", 2)
    monkeypatch.setattr(gpu_cases, "SIZES", ((), (17,), (64, 33), (4, 5, 3, 3)))
    for number, _ in enumerate(gpu_cases.settings_of(name)):
        error, bound = gpu_checks.compare_trajectory(name, number, torch.float64, "forloop")
        assert error <= bound
    assert gpu_speed.min_streams(name) >= 3


def test_a_class_without_settings_of_its_own_is_checked_with_weight_decay() -> None:
    assert gpu_cases.settings_of("NAdam") == [{}, {"weight_decay": 0.1}]


@pytest.mark.thorough
@outside_interpreter
def test_a_rehearsal_runs_every_part_once(tmp_path: Path) -> None:
    """The script runs for one class in new processes. A second run repeats nothing.

    Libraries of the generator and the tests cannot be imported: a machine with a GPU may lack them.
    """
    pytest.importorskip("triton")
    for absent in ("jinja2", "pytest", "sympy", "typer"):
        (tmp_path / f"{absent}.py").write_text(f"raise ImportError('no {absent} here')\n")
    out = tmp_path / "results.jsonl"
    command = [sys.executable, gpu.__file__, "--rehearse", "--only", "SGD", "--out", str(out)]
    for _ in range(2):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "ignore"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        lines = out.read_text().splitlines()
    results = Results(out)
    assert not results.current_task
    assert len(lines) == 2 * len(results.done)
    parts = {name.partition(":")[0] for name in results.done}
    assert parts == {"machine", *gpu.PARTS}
    (compared,) = (r["variants"] for r in results.done.values() if "variants" in r)
    assert {t for t, found in compared.items() if "device_ms" not in found} == {
        "torch fused, in a graph"  # torch's SGD is not capturable
    }


class CrashingProcess:
    """A fake process that crashes in a check at its first two starts."""

    started = 0

    def __init__(self, command: list[str], env: Any) -> None:
        CrashingProcess.started += 1
        results = Results(Path(command[command.index("--out") + 1]))
        if CrashingProcess.started < 3:
            results.begin(f"check {CrashingProcess.started}")
        else:
            results.add("the rest", {"right": True, "error": 0.0})
        self._status = -11 if CrashingProcess.started < 3 else 0

    def poll(self) -> int:
        return self._status

    wait = poll


def test_a_crash_fails_a_check_and_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "Popen", CrashingProcess)
    out = tmp_path / "results.jsonl"
    assert gpu.main(["--out", str(out)]) == 1
    assert list(Results(out).failed()) == ["check 1", "check 2"]
    assert Results(out).done["check 1"]["raised"] == "ended the process: -11"
    assert "3 results, 2 failed checks" in capsys.readouterr().out


def test_a_run_that_is_out_of_time_exits_with_status_3(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    assert gpu.main(["--out", str(out), "--minutes", "0"]) == 3


def test_the_results_file_has_a_line_for_each_start_and_result(tmp_path: Path) -> None:
    out = tmp_path / "sub" / "results.jsonl"
    results = Results(out)
    results.begin("one")
    assert Results(out).current_task == "one"
    results.add("one", {"right": False})
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"name": "one"},
        {"name": "one", "result": {"right": False}},
    ]
    assert list(Results(out).failed()) == ["one"]
