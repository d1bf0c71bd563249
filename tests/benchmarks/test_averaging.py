"""Test that the benchmark of averaged models prints a line for every library, mean and list."""

import pytest

from benchmarks import averaging


def test_averaging_prints_a_line_for_every_library_mean_and_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(averaging, "SHAPES", {"small": [(4, 10), (3,)], "one": [(6,)]})
    averaging.main(0.01, [])

    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "limit" in line]
    titles_and_means = [[title, mean] for title in ("optgen", "torch") for mean in averaging.MEANS]
    assert [line[:2] for line in lines if line[0] != "limit"] == titles_and_means * 2
    assert [line[3] for line in lines if line[0] == "limit"] == ["1.00"] * 2
