"""Run tests of other files again through fused Triton, in a process with Triton's interpreter."""

from __future__ import annotations

import pytest
from interpreter import outside_interpreter, run_inside
from parity.cases import INTERPRETED_CASES
from parity.classes import CLOSURE, SPARSE

SINGLE, HALF = "test_single_precision", "test_half_precision"
CHECKPOINTS = "continues and fused_triton and bfloat16"
FUSED = [case for case in INTERPRETED_CASES if case.name not in (*CLOSURE, *SPARSE)]


@outside_interpreter
@pytest.mark.parametrize(
    ("file", "chosen", "least"),
    [
        ("parity/test_trajectories.py", "test_a_lowering_follows_torch", len(FUSED) // 2),
        ("parity/test_precision.py", SINGLE, 7),
        pytest.param(
            "parity/test_precision.py", f"{HALF} and bfloat16", 6, marks=pytest.mark.thorough
        ),
        pytest.param(
            "parity/test_checkpoints.py",
            CHECKPOINTS,
            len({case.name for case in FUSED}),
            marks=pytest.mark.thorough,
        ),
        ("lowerings/test_elementwise_ops.py", "test_an_op_means_what_ops_py_says", 15),
        ("properties/test_lowerings.py", "test_every_lowering_is_the_rule", 1),
    ],
)
def test_through_the_interpreter(file: str, chosen: str, least: int) -> None:
    pytest.importorskip("triton")

    summary = run_inside(f"tests/{file}", chosen)

    assert int(summary.split(" passed")[0]) >= least, summary
