"""Test the results file: it has a line for each cell, and new results replace old ones."""

from __future__ import annotations

from pathlib import Path

from optgen.bench.results import Cell, load, machine_of, merge

ONE, TWO = Cell("step", "AdamW", "1e6"), Cell("step", "AdamW", "1e6", "bfloat16", 2)


def test_later_results_replace_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    assert load(path) == machine_of(path) == {}

    merge(path, {ONE: {"optgen": {"median": 1.0}}})
    merge(path, {TWO: {"optgen": {"median": 2.0}}})
    merged = merge(path, {ONE: {"optgen": {"median": 0.123456, "samples": 3}}})

    assert set(merged) == {ONE, TWO}
    assert load(path) == {
        ONE: {"optgen": {"median": 0.1235, "samples": 3}},
        TWO: {"optgen": {"median": 2.0}},
    }
    assert "torch" in machine_of(path)


def test_the_file_has_a_line_for_each_cell(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    merge(path, {ONE: {}, TWO: {}})

    assert sum('"AdamW"' in line for line in path.read_text().splitlines()) == 2


def test_the_text_of_a_cell_names_class_tensors_dtype_and_threads() -> None:
    assert str(ONE) == "AdamW, 1e6, float32, 1 thread"
    assert str(Cell("busy", "SGD", "1e6", threads=2)) == "busy: SGD, 1e6, float32, 2 threads"
