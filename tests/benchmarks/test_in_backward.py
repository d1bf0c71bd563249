"""Test that the benchmark of updates in the backward pass prints a line for every way to update."""

from typing import Any

import pytest

from benchmarks import in_backward


def test_in_backward_prints_a_line_for_every_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure_in_this_process(module: str, request: dict[str, Any]) -> dict[str, float]:
        assert module == "benchmarks.in_backward"
        return in_backward.measure(**request)

    monkeypatch.setattr(in_backward.child_process, "ask", measure_in_this_process)
    monkeypatch.setattr(in_backward, "ROWS", 30)
    in_backward.main(2, 16)

    lines = capsys.readouterr().out.splitlines()[1:]
    ways = [f"dense, {way}" for way in in_backward.DENSE]
    ways += [f"table, {way}" for way in in_backward.TABLES]
    assert [line.partition(":")[0] for line in lines] == ways
