"""Test that the benchmark of sharded parameters prints a row for every class, form and shape."""

import pytest
from torch import distributed

from benchmarks import dtensor

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


def test_dtensor_prints_a_row_for_every_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dtensor, "SHAPES", ((2, 3),))
    monkeypatch.setattr(dtensor, "TENSORS", 2)
    monkeypatch.setattr(
        dtensor, "CASES", [case for case in dtensor.CASES if case[:2] != ("AdamW", "fused")]
    )
    dtensor.main(0.01)

    rows = [line for line in capsys.readouterr().out.splitlines() if " | x" in line]
    assert [row.split(" | ")[:3] for row in rows] == [
        [f"| {name}", form, "2x3"] for name, form, _ in dtensor.CASES
    ]
