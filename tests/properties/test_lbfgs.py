"""Test LBFGS against torch on random quadratic and logistic problems, with random options."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim.lbfgs_problems import assert_torchs_path, logistic, quadratic

OPTIONS = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([0.03, 0.3, 1, 4.0]),
        "history_size": st.sampled_from([1, 2, 5, 100]),
        "max_iter": st.integers(1, 12),
        "tolerance_change": st.sampled_from([1e-9, 1e-5]),
        "tolerance_grad": st.sampled_from([1e-7, 1e-3]),
    },
    optional={
        "line_search_fn": st.sampled_from([None, "strong_wolfe"]),
        "max_eval": st.integers(1, 15),
    },
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from([quadratic, logistic]),
    st.integers(1, 40),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.5, 10.0]),
    OPTIONS,
)
def test_lbfgs_takes_torchs_path(
    problem: Any, size: int, seed: int, scale: float, options: Any
) -> None:
    generator = torch.Generator().manual_seed(seed)
    start = scale * torch.randn(size, generator=generator, dtype=torch.float64)
    assert_torchs_path(problem(size, seed), start, 4, **options)
