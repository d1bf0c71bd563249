"""Test the specs of track 3's results against their scripts' steps, written anew in plain torch."""

from __future__ import annotations

import pytest
from interpreter import inside_interpreter, outside_interpreter, run_inside
from track3.follow import largest_difference, steady_decompositions
from track3.results import RESULTS

FUSED = (2, 4)
"""Results whose specs have no words of matrices, and so fused lowerings."""
EAGER = ("forloop", "foreach")
AT_ONCE = (27,)
"""Results whose first step divides the rounding errors of a projection by eps, 1e-8."""
IN_BASES = [number for number, result in RESULTS.items() if result.decomposes]
WAYS = [(number, lowering) for number in RESULTS for lowering in EAGER if number not in IN_BASES]


@outside_interpreter
@pytest.mark.parametrize(("number", "lowering"), [*WAYS, *((n, "fused_cpu") for n in FUSED)])
def test_equal_to_the_script(number: int, lowering: str) -> None:
    assert largest_difference(RESULTS[number], lowering) <= 1e-10


@outside_interpreter
@pytest.mark.parametrize("lowering", EAGER)
@pytest.mark.parametrize("number", IN_BASES)
def test_equal_to_the_script_in_bases(number: int, lowering: str) -> None:
    if number not in AT_ONCE and lowering == "foreach":  # both call the same decompositions
        assert largest_difference(RESULTS[number], lowering, only_square=True) <= 1e-10
    with steady_decompositions():
        assert largest_difference(RESULTS[number], lowering) <= 1e-10


@inside_interpreter
def test_kernels_equal_the_script() -> None:
    """Result 4 reduces; result 2 is the catalogue's AdamW, whose kernels have tests."""
    assert largest_difference(RESULTS[4], "fused_triton") <= 1e-10


@outside_interpreter
def test_in_the_interpreter() -> None:
    run_inside(__file__)
