"""Test the specs of track 3's results against their scripts' steps, written anew in plain torch."""

from __future__ import annotations

import pytest
from interpreter import inside_interpreter, outside_interpreter, run_inside
from track3.follow import largest_difference
from track3.results import RESULTS

FUSED = (2, 4)
"""Results whose specs have no words of matrices, and so fused lowerings."""
WAYS = [(number, lowering) for number in RESULTS for lowering in ("forloop", "foreach")]
WAYS += [(number, "fused_cpu") for number in FUSED]


@outside_interpreter
@pytest.mark.parametrize(("number", "lowering"), WAYS)
def test_equal_to_the_script(number: int, lowering: str) -> None:
    assert largest_difference(RESULTS[number], lowering) <= 1e-10


@inside_interpreter
@pytest.mark.parametrize("number", FUSED)
def test_kernels_equal_the_script(number: int) -> None:
    assert largest_difference(RESULTS[number], "fused_triton") <= 1e-10


@outside_interpreter
def test_in_the_interpreter() -> None:
    run_inside(__file__)
