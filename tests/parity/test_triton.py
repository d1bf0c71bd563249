"""Run tests of other files again through fused Triton, in a process with Triton's interpreter."""

from __future__ import annotations

import pytest
from interpreter import outside_interpreter, run_inside
from parity.cases import INTERPRETED_CASES
from parity.classes import CLOSURE_CLASSES, SPARSE_CLASSES

FLOAT32_TEST, TEST_IN_16_BITS = (
    "test_float32_errors_are_within_torchs",
    "test_16_bit_errors_are_within_torchs",
)
CHECKPOINT_TESTS = "continues and fused_triton and bfloat16"
CASES_IN_TRITON = [
    case for case in INTERPRETED_CASES if case.name not in (*CLOSURE_CLASSES, *SPARSE_CLASSES)
]


@outside_interpreter
@pytest.mark.parametrize(
    ("file", "expression", "min_passed"),
    [
        (
            "parity/test_trajectories.py",
            "test_a_lowering_ends_where_torch_does",
            len(CASES_IN_TRITON) // 2,
        ),
        ("parity/test_precision.py", FLOAT32_TEST, 4),
        pytest.param(
            "parity/test_precision.py",
            f"{TEST_IN_16_BITS} and bfloat16",
            6,
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "parity/test_checkpoints.py",
            CHECKPOINT_TESTS,
            len({case.name for case in CASES_IN_TRITON}),
            marks=pytest.mark.thorough,
        ),
        ("lowerings/test_elementwise_ops.py", "test_an_op_means_what_ops_py_says", 15),
        ("properties/test_lowerings.py", "test_every_lowering_computes_the_rule", 1),
    ],
)
def test_other_tests_pass_in_the_interpreter(file: str, expression: str, min_passed: int) -> None:
    pytest.importorskip("triton")

    summary = run_inside(f"tests/{file}", expression)

    assert int(summary.split(" passed")[0]) >= min_passed, summary
