"""Test which kernels read codes of 8 bits."""

from __future__ import annotations

import pytest
from spec_texts import read, spec

from optgen.passes.kernel_plans import codes_readers

STATE = 'm=state("exp_avg", dtype="8bit", block=64, map="linear", min_elements=0)'
UPDATE = "p = p - lr * m"


@pytest.mark.parametrize(
    ("average", "readers"),
    [
        ("m = m + g", ("fused_cpu", "fused_triton")),
        ("m = m + g * ndim(p)", ("fused_cpu", "fused_triton")),
        ("m = m + g * random(0, 1)", ("fused_cpu", "fused_triton")),
        ("m = m + g / norm(g)", ("fused_cpu", "fused_triton")),
        ('m = m + g / norm(g, over="all")', ("fused_cpu", "fused_triton")),
        ("if factored(p):\n        m = m + g / row_norm(g)", ()),
        ("if factored(p):\n        m = m + g / max_abs(row_sum(g))", ()),
        ("if factored(p):\n        m = inverse_root(g @ transpose(g), 4, 0.1) @ m", ()),
    ],
)
def test_kernels_read_codes_unless_the_rule_has_rows_columns_or_products(
    average: str, readers: tuple[str, ...]
) -> None:
    assert codes_readers(read(spec(average, UPDATE, states=STATE))) == readers
