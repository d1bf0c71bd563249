"""Test the parts of the GPU benchmark that run without a GPU."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import outside_interpreter

import optgen.optim
from benchmarks import gpu, gpu_cases, gpu_checks, gpu_kernels, gpu_one_step, gpu_report, gpu_speed
from benchmarks.classes import CLASSES
from benchmarks.gpu_kernels import Launches
from benchmarks.gpu_results import Results, result_of
from benchmarks.triton_aot_assembly import bytes_per_element
from optgen.runtime import GeneratedOptimizer


def test_every_class_with_dense_gradients_is_measured() -> None:
    public = {name: getattr(optgen.optim, name) for name in optgen.optim.__all__}
    ours = {
        n for n, c in public.items() if isinstance(c, type) and issubclass(c, GeneratedOptimizer)
    }
    assert ours - set(CLASSES) <= {"SparseAdam"}
    assert set(gpu_cases.SETTINGS) <= set(CLASSES)
    checks = gpu_checks.situation_checks(CLASSES) | gpu_checks.trajectory_checks(CLASSES)
    checks |= gpu_one_step.one_step_checks(CLASSES)
    assert {title.split()[0] for title in checks} == {*CLASSES, "SparseAdam"}


@pytest.fixture
def small_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the checks take a few steps of small CPU tensors."""
    monkeypatch.setattr(gpu_cases, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_checks, "STEPS", 2)
    monkeypatch.setattr(gpu_cases, "SIZES", ((), (17,), (64, 33), (4, 5, 3, 3)))
    caches = (gpu_cases.drawn_numbers, gpu_one_step.points_around_step, gpu_one_step.torch_error)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_passes_its_checks_on_the_cpu(name: str, small_cpu: None) -> None:
    for number, _ in enumerate(gpu_cases.settings_of(name)):
        error, limit = gpu_checks.compare_trajectory(name, number, "forloop")
        assert error <= limit
    assert gpu_speed.min_streams(name) >= 3


@outside_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*CLASSES, "SOAP"])
def test_one_step_on_the_cpu_is_rounded_as_on_a_device(
    name: str, dtype: torch.dtype, small_cpu: None
) -> None:
    for number, _ in enumerate(gpu_cases.settings_of(name)):
        error = gpu_one_step.error_of_step(name, number, dtype, "fused_cpu")
        assert error <= gpu_one_step.ULPS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_step_that_is_a_little_wrong_is_noticed(dtype: torch.dtype) -> None:
    old = torch.linspace(-2, 2, 1000, dtype=torch.float64).to(dtype).double()
    right = old - 0.1
    assert gpu_one_step.ulps(right.to(dtype), old, right, 0.0) == 0
    wrong = old - 0.1 - 2.5 * torch.finfo(dtype).eps * gpu_one_step.ULPS[dtype]
    assert gpu_one_step.ulps(wrong.to(dtype), old, right, 0.0) > gpu_one_step.ULPS[dtype]
    not_a_number = torch.full_like(wrong, torch.nan).to(dtype)
    assert gpu_one_step.ulps(not_a_number, old, right, 0.0) == torch.inf


@pytest.mark.parametrize("name", CLASSES)
def test_every_row_called_fused_is_of_the_fused_lowering(name: str) -> None:
    """On a CPU the fused lowering is C++. The choice does not depend on the device."""
    for title, make in gpu_speed.variants(name).items():
        if title.startswith(gpu_speed.OURS):
            param = torch.ones(4, 4, requires_grad=True)
            param.grad = torch.ones_like(param)
            assert gpu_speed.is_fused(make([param])), title


def test_an_infinite_limit_or_an_undefined_error_fails_a_check() -> None:
    for outcome in ((0.0, math.inf), (math.nan, 1.0), (math.inf, math.inf), (2.0, 1.0)):
        assert not result_of(lambda outcome=outcome: outcome)()["right"]
    assert result_of(lambda: (1.0, 1.0))()["right"]


def test_states_must_be_where_torch_keeps_them() -> None:
    here, there = torch.zeros(()), torch.zeros((), device="meta")
    gpu_checks.check_places({0: {"step": there}}, {0: {"step": there}})
    with pytest.raises(AssertionError, match="`step` is on cpu, and torch keeps it on meta"):
        gpu_checks.check_places({0: {"step": here}}, {0: {"step": there}})


def test_random_numbers_are_drawn_once(small_cpu: None) -> None:
    first = gpu_cases.draw((5, 3), 7, torch.bfloat16, torch.float32)
    first.zero_()  # nothing else sees it
    again = gpu_cases.draw((5, 3), 7, torch.bfloat16, torch.float32)
    assert again.abs().min() > 0
    assert torch.equal(again, again.bfloat16().float())
    assert not torch.equal(again, gpu_cases.draw((5, 3), 8, torch.bfloat16, torch.float32))
    assert gpu_cases.drawn_numbers() is gpu_cases.drawn_numbers()


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
    command = [sys.executable, gpu.__file__, "--rehearse", "--only", "SGD", "--out", str(tmp_path)]
    for _ in range(2):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "ignore"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        lines = gpu.results_file(tmp_path).read_text().splitlines()
    results = Results(gpu.results_file(tmp_path))
    assert not results.current_task
    assert len(lines) == 2 * len(results.done)
    parts = {name.partition(":")[0] for name in results.done}
    assert parts == {"machine", *gpu.PARTS}
    compared = [r["variants"] for r in results.done.values() if "variants" in r]
    absent = {t for each in compared for t, found in each.items() if "device_ms" not in found}
    assert absent <= {  # torch's SGD is not capturable, and its compiler needs what is absent here
        "torch fused, in a graph",
        "torch compiled",
    }
    report = (tmp_path / "report.txt").read_text()
    assert f"{len(results.done)} results" in report
    assert "ok   quick: SGD, bfloat16: in a graph: error 0, limit 0" in report


class CrashingProcess:
    """A fake process that crashes in a check at its first two starts."""

    started = 0

    def __init__(self, command: list[str], env: Any) -> None:
        CrashingProcess.started += 1
        results = Results(gpu.results_file(Path(command[command.index("--out") + 1])))
        if CrashingProcess.started < 3:
            results.begin(f"check {CrashingProcess.started}")
        else:
            results.add("the rest", {"right": True, "error": 0.0, "limit": 1.0})
        self._status = -11 if CrashingProcess.started < 3 else 0

    def poll(self) -> int:
        return self._status

    wait = poll


def test_a_crash_fails_a_check_and_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "Popen", CrashingProcess)
    assert gpu.main(["--out", str(tmp_path)]) == 1
    results = Results(gpu.results_file(tmp_path))
    assert list(results.failed()) == ["check 1", "check 2"]
    assert results.done["check 1"]["raised"] == "ended the process: -11"
    assert "3 results, 3 checks, 2 failed checks" in capsys.readouterr().out


def test_a_run_that_is_out_of_time_exits_with_status_3(tmp_path: Path) -> None:
    assert gpu.main(["--out", str(tmp_path), "--minutes", "0"]) == 3


def test_a_task_that_runs_when_time_is_up_is_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, popen = gpu.results_file(tmp_path), subprocess.Popen

    def slow_worker(command: list[str], env: Any) -> subprocess.Popen[bytes]:
        Results(file).begin("a long task")
        return popen([sys.executable, "-c", "import time; time.sleep(60)"])

    monkeypatch.setattr(subprocess, "Popen", slow_worker)
    monkeypatch.setattr(gpu, "GRACE", 0.5)
    assert gpu.main(["--out", str(tmp_path), "--minutes", "0.01"]) == 3
    results = Results(file)
    assert not results.done
    assert not results.current_task
    assert "tasks are left" in capsys.readouterr().out


def test_a_task_that_hangs_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, popen = gpu.results_file(tmp_path), subprocess.Popen

    def hanging_worker(command: list[str], env: Any) -> subprocess.Popen[bytes]:
        results = Results(file)
        if results.done:
            return popen([sys.executable, "-c", ""])
        results.begin("hangs")
        return popen([sys.executable, "-c", "import time; time.sleep(60)"])

    monkeypatch.setattr(subprocess, "Popen", hanging_worker)
    monkeypatch.setattr(gpu, "MAX_SILENCE", 0.5)
    assert gpu.main(["--out", str(tmp_path)]) == 1
    assert list(Results(file).failed()) == ["hangs"]


def test_a_line_that_was_half_written_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"name": "one", "result": {"right": true}}\n{"name": "tw')
    results = Results(path)
    assert list(results.done) == ["one"]
    results.begin("two")
    assert Results(path).current_task == "two"


def test_an_interrupted_task_is_not_the_current_one(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Results(path).begin("one")
    results = Results(path)
    results.interrupt()
    results.interrupt()
    assert not results.current_task
    assert not Results(path).current_task
    assert not Results(path).done
    assert len(path.read_text().splitlines()) == 2


def test_the_bytes_of_a_sweep_are_those_of_whole_blocks() -> None:
    ttir = """
        %a = tt.load %p : tensor<1024x!tt.ptr<f32>>
        %b = tt.load %q : tensor<1024x!tt.ptr<bf16>>
        %m = tt.load %p, %mask : tensor<256x!tt.ptr<f32>>
        tt.store %p, %a : tensor<1024x!tt.ptr<f32>>
    """
    assert bytes_per_element(ttir, {"BLOCK": 1024, "VECTOR": 8}) == (6, 4)
    assert bytes_per_element(ttir, {"FOLD": 1024}) == (0, 0)  # no sweep
    tiles = "%a = tt.load %p : tensor<1x16x128x!tt.ptr<f32>>\n"
    options = {"TILES": ((1, 16, 128), (2, 32, 32)), "VECTOR": 4}
    both = tiles + "%b = tt.load %p : tensor<2x32x32x!tt.ptr<f32>>"
    assert bytes_per_element(both, options) == (4, 0)
    assert bytes_per_element("%c = tt.load %p : tensor<1024x!tt.ptr<f64>>", options) == (0, 0)


def test_the_elements_of_a_block_share_the_bytes_of_its_scale() -> None:
    ttir = """
        %cst = arith.constant dense<256> : tensor<1024xi32>
        %q = tt.addptr %p, %lanes : tensor<1024x!tt.ptr<i8>>, tensor<1024xi32>
        %a = tt.load %q : tensor<1024x!tt.ptr<i8>>
        %block = arith.divsi %lanes, %cst : tensor<1024xi32>
        %s = tt.addptr %p, %block : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
        %b = tt.load %s : tensor<1024x!tt.ptr<f32>>
    """
    assert bytes_per_element(ttir, {"BLOCK": 1024, "VECTOR": 8}) == (1 + 4 / 256, 0)


def test_a_kernel_has_a_verdict_if_its_traffic_is_from_memory() -> None:
    large, small = Launches(bytes_moved=3e8), Launches(bytes_moved=1e6)
    rows = [
        gpu_kernels.row("sweep", us, 1, 1000.0, launches, 3000.0)
        for us, launches in ((110.0, large), (112.0, large), (5.0, small), (5.0, None))
    ]
    assert [row["verdict"] for row in rows] == ["PASS", "SLOW", "fits the cache", ""]
    assert rows[0]["of_copy"] == pytest.approx(3e8 / 110e-6 / 3000e9)
    result = {"kernels": rows, "ms": 1.0, "elements": 1, "times_by": "events, as no profiler ran"}
    text = "\n".join(gpu_report.lines("k", result))
    assert "  times by events, as no profiler ran\n" in text
    assert "110.0 us   11% of the step    2727 GB/s   91% of a copy  PASS" in text


@pytest.mark.parametrize(
    ("found", "source"),
    [
        ({"sweep": (2.0, 1)}, "profiler"),
        ({"Memset": (2.0, 1)}, "events, as torch's profiler saw none of the kernels"),
        ({}, "events, as torch's profiler saw none of the kernels"),
        (RuntimeError("no right\nto it"), "events, as torch's profiler failed: no right"),
    ],
)
def test_events_time_kernels_that_the_profiler_does_not(
    found: Any, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def profile(step: Any, steps: int) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(gpu_kernels, "kernel_times", profile)
    monkeypatch.setattr(gpu_kernels, "between_events", lambda step: {"sweep": (3.0, 1)})
    times, timed_by = gpu_kernels.times_of_kernels(print, {"sweep": Launches()})

    assert timed_by == source
    assert times == {"sweep": (2.0 if timed_by == "profiler" else 3.0, 1)}


def test_the_summary_names_what_is_wrong_and_slow() -> None:
    variants = {
        gpu_speed.OURS: {"device_ms": 2.0},
        "torch fused": {"device_ms": 1.0},
        "torch fused, in a graph": {"device_ms": 0.1},
    }
    slow = {"name": "sweep", "verdict": "SLOW", "of_copy": 0.5}
    summary = "\n".join(
        gpu_report.summary(
            {
                "a": {"right": False, "raised": "Traceback\nValueError: no"},
                "b": {"right": True, "error": 0.0, "limit": 1.0},
                "c": {"variants": variants},
                "d": {"kernels": [slow, {"name": "finish", "verdict": ""}]},
            }
        )
    )
    assert "4 results, 2 checks, 1 failed checks\nBAD  a: ValueError: no" in summary
    assert "2 kernels, 1 below 90% of a copy\n  d: sweep 50%" in summary
    assert "1 comparisons, 1 slower than torch's fastest\n  c: x2.00" in summary


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
