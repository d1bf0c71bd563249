"""Test the CPU benchmark: its arguments, its results file, and the figures in the README."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import cpu
from optgen.bench.results import Cell, load
from optgen.bench.suite import Suite
from optgen.bench.tensor_lists import LISTS, TensorList
from optgen.bench.variants import FUSED, LIMIT, OURS


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cpu.py", *arguments])
    return cpu.main()


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("optgen.bench.measure._SAMPLE_SECONDS", 1e-5)
    monkeypatch.setattr("optgen.bench.measure._CACHE_BYTES", 1000)
    monkeypatch.setitem(LISTS, "1e6", TensorList("1e6", "", [(3, 4)]))
    return tmp_path / "cpu.json"


ARGUMENTS = ("--parts", "step", "--lists", "1e6", "--dtype", "float32", "--threads", "1")


def test_results_are_written_and_compared_with_targets(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--only", "SGD", *ARGUMENTS, "--out", str(out)) == 0

    assert set(load(out)) == {Cell("step", "SGD", "1e6")}
    printed = capsys.readouterr().out
    assert "1/1 SGD, 1e6, float32, 1 thread: " in printed
    assert "not measured" in printed


def test_resume_skips_measured_cells(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--only", "SGD", *ARGUMENTS, "--out", str(out)) == 0
    assert run(monkeypatch, "--only", "SGD", "ASGD", *ARGUMENTS, "--out", str(out), "--resume") == 0

    assert "1/1 ASGD" in capsys.readouterr().out
    assert {cell.name for cell in load(out)} == {"SGD", "ASGD"}


def test_a_cell_that_fails_is_reported_and_the_others_are_measured(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_or_fail(suite: Suite, cell: Cell) -> dict[str, dict[str, float]]:
        if cell.name == "SGD":
            raise RuntimeError("no memory")
        return {OURS: {"median": 1.0, "min": 1.0}, LIMIT: {"median": 0.5, "min": 0.5}}

    monkeypatch.setattr(Suite, "run", run_or_fail)

    assert run(monkeypatch, "--only", "SGD", "Adam", *ARGUMENTS, "--out", str(out)) == 1

    assert "failed: SGD, 1e6" in capsys.readouterr().out
    assert {cell.name for cell in load(out)} == {"Adam"}


def test_the_option_try_writes_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--only", "SGD", *ARGUMENTS, "--out", str(out), "--try") == 0

    assert not out.exists()


def test_the_readme_shows_the_results() -> None:
    text = cpu.README.read_text(encoding="utf-8")

    assert cpu.with_summary(text, load(cpu.RESULTS)) == text


def test_a_summary_has_only_measured_figures() -> None:
    figures = {OURS: {"median": 2.0}, LIMIT: {"median": 1.9}, "torch for-loop": {"median": 1234.0}}
    text = cpu.with_summary(
        f"a\n{cpu.MARKS[0]}\nold\n{cpu.MARKS[1]}\nb\n", {Cell("step", "AdamW", "gpt2"): figures}
    )

    assert "old" not in text
    assert "| AdamW, like GPT-2 small, float32 | 2 ms | 95% | 1,234 ms | 1,234 ms |" in text
    assert text.startswith("a\n")
    assert text.endswith("\nb\n")


def test_the_summary_has_times_beside_a_busy_process() -> None:
    times = {OURS: {"quiet": 0.4665, "busy": 0.4622}, FUSED: {"quiet": 8.96, "busy": 130.1}}

    text = cpu.with_summary(
        "".join(cpu.MARKS), {Cell("busy", "AdamW", "2000x256", threads=2): times}
    )

    found = " ".join(text.split())
    assert "takes 0.467 ms alone, and 0.462 ms while another process keeps one" in found
    assert "fused form takes 8.96 ms alone, and 130 ms beside that process." in found
