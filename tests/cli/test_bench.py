"""Test optgen bench: its table, its file, its picture, and the arguments that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.commands import run

from optgen.bench import roofline
from optgen.bench.results import load
from optgen.bench.suite import Suite
from optgen.bench.tensor_lists import LISTS, TensorList
from optgen.cli import bench
from optgen.runtime.toolchain import compiler, library_cache


def test_bench_writes_a_table_a_file_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each class and list has a row with torch's times and ours."""
    monkeypatch.setattr("optgen.bench.measure._SAMPLE_SECONDS", 1e-5)
    monkeypatch.setitem(LISTS, "2000x256", TensorList("2000x256", "", [(2, 2)] * 3))
    plot, json = tmp_path / "bench.png", tmp_path / "bench.json"
    options = ("--list", "2000x256", "--seconds", "0.01", "--json", str(json), "--plot", str(plot))

    result = run("bench", "SGD", "radam", "--unfused", *options)

    assert result.exit_code == 0, result.output
    assert "torch's default  optgen for-loop  optgen foreach" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if "2000x256" in line]
    assert [row[0] for row in rows] == ["SGD", "RAdam"]
    assert {cell.name for cell in load(json)} == {"SGD", "RAdam"}
    assert plot.stat().st_size > 1000


def test_bench_refuses_unknown_names_and_lists_the_known_ones() -> None:
    assert run("bench", "Adamm").exit_code == 2
    assert "dense gradients are measured" in run("bench", "SparseAdam").output
    assert "no algorithm is called lio; did you mean lion?" in run("bench", "lio").output
    assert "no list 1e7; there are " in run("bench", "SGD", "--list", "1e7").output
    assert "no dtype int8; there are float32, " in run("bench", "SGD", "--dtype", "int8").output


def test_the_help_names_every_list_of_tensors() -> None:
    words = " ".join(run("bench", "--help").output.replace("\u2502", " ").split())

    assert f"Lists of tensors: {', '.join(LISTS)}." in words


def test_bench_without_a_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop in C measures the memory bandwidth, so the command needs a compiler."""
    monkeypatch.setattr(compiler, "find", lambda: None)
    monkeypatch.setattr(roofline, "_library", roofline._library.__wrapped__)
    monkeypatch.setattr(library_cache, "folders", lambda: iter(()))
    monkeypatch.setattr(Suite, "run", lambda suite, cell: roofline._library())

    result = run("bench", "SGD")

    assert result.exit_code == 4
    assert "optgen: no C++ compiler was found: install g++" in result.stderr


def test_classes_that_multiply_matrices_are_measured_on_small_lists_only() -> None:
    cells = bench.Request(["muon", "sgd"], ["1e6", "gpt2", "resnet50"]).cells()

    assert [(cell.name, cell.tensors) for cell in cells] == [
        ("Muon", "1e6"),
        ("SGD", "1e6"),
        ("SGD", "gpt2"),
        ("SGD", "resnet50"),
    ]
