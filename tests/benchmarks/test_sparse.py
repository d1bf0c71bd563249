"""Test that the benchmark of sparse gradients prints a row for every class and table."""

import pytest

from benchmarks import sparse


def test_sparse_prints_a_row_for_every_class_and_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sparse, "TABLES", {"small": (20, 4, 10), "flat": (20, 1, 30)})
    sparse.main(0.01)

    rows = [line for line in capsys.readouterr().out.splitlines() if " | x" in line]
    assert [line.split(" | ")[0] for line in rows] == [
        f"| {name}" for name in sparse.NAMES for _ in range(2)
    ]
