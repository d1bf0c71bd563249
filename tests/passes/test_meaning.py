"""Every pass keeps what a rule means: the six specs, and specs that nobody wrote."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from plan_run import run_plan
from planning import PASSES
from strategies import FLAGS, specs

from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.ir.text import to_text
from optgen.ir.verify import verify_algorithm, verify_plan
from optgen.passes.ssa import to_ssa
from optgen.spec.read import read_spec

STEPS = 3


def read(text: str, folder: Path) -> Algorithm:
    path = folder / "random.py"
    path.write_text(text)
    return read_spec(path)[0]


def trajectory(step: Callable[..., Any], hypers: dict[str, Any], seed: int) -> list[Any]:
    """Parameter and state after each step, in checkpoint order."""
    generator = torch.Generator().manual_seed(seed)
    param = torch.randn(7, generator=generator, dtype=torch.float64)
    state: dict[str, Any] = {}
    seen = []
    for _ in range(STEPS):
        grad = torch.randn(7, generator=generator, dtype=torch.float64)
        param, state = step(hypers, param, grad, state)
        seen += [param.clone(), *(torch.as_tensor(v).clone() for v in state.values())]
    return seen


def assert_same(a: list[Any], b: list[Any], text: str) -> None:
    for x, y in zip(a, b, strict=True):
        scale = y[y.isfinite()].abs().max().item() if y.isfinite().any() else 1.0
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9 * max(scale, 1.0), equal_nan=True)


def defaults(algorithm: Algorithm) -> dict[str, Any]:
    return {h.name: h.default for h in algorithm.hypers}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=specs(), flags=FLAGS, seed=st.integers(0, 2**16))
def test_random_specs(tmp_path: Path, text: str, flags: dict[str, Any], seed: int) -> None:
    algorithm = read(text, tmp_path)
    hypers = defaults(algorithm) | flags

    def oracle(*args: Any) -> Any:
        return evaluate(algorithm, *args, scalar_dtype=torch.float64)

    expected = trajectory(oracle, hypers, seed)
    versioned = to_ssa(algorithm)
    verify_algorithm(versioned)
    for name, make in PASSES.items():
        planned = make(algorithm)
        note(f"{name}\n{to_text(planned)}")
        verify_plan(planned, hoisted="hoisted" in name)
        found = trajectory(partial(run_plan, planned), hypers, seed)
        assert_same(found, expected, name)
