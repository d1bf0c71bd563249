"""Rules for whole parameters that nobody wrote: their plans compute what the rule says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from matrix_strategies import matrix_specs
from plan_run import run_plan
from strategies import FLAGS
from torch import Tensor

from optgen.ir.evaluate import evaluate
from optgen.ir.text import to_text
from optgen.ir.verify import verify_algorithm, verify_plan
from optgen.passes.expand_reductions import expand_reductions
from optgen.passes.fold_denominators import fold_denominators
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.plan import Order, plans
from optgen.passes.ssa import to_ssa
from optgen.spec import Spec
from optgen.spec.read import read_spec

SHAPES = ((3, 4), (4, 1), (2, 3, 2))


def follow(step: Any, hypers: dict[str, Any], shape: tuple[int, ...], seed: int) -> list[Tensor]:
    """Parameter and states after each of three steps."""
    generator = torch.Generator().manual_seed(seed)
    param = torch.randn(shape, generator=generator, dtype=torch.float64)
    state: dict[str, Any] = {}
    seen = []
    for _ in range(3):
        grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        param, state = step(hypers, param, grad, state, torch.float64)
        seen += [param.clone(), *(torch.as_tensor(v).clone() for v in state.values())]
    return seen


@pytest.mark.parametrize("order", ["late", "early"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(text=matrix_specs(), flags=FLAGS, seed=st.integers(0, 999))
def test_a_cut_rule_is_the_rule(order: Order, text: str, flags: dict[str, Any], seed: int) -> None:
    note(text)
    (algorithm,) = read_spec(Spec("Random", text, "<random>", 1))
    verify_algorithm(expand_reductions(to_ssa(algorithm)))
    hypers = {h.name: h.default for h in algorithm.hypers} | flags
    chosen = plans(algorithm, order)[0]
    verify_plan(chosen, hoisted=False)
    hoisted = hoist_scalars(fold_denominators(chosen))
    note(to_text(hoisted))
    verify_plan(hoisted)
    for shape in SHAPES:
        expected = follow(lambda *a: evaluate(algorithm, *a), hypers, shape, seed)
        for made in (chosen, hoisted):
            found = follow(lambda *a, plan=made: run_plan(plan, *a), hypers, shape, seed)
            for a, b in zip(found, expected, strict=True):
                scale = float(b.abs().max()) if b.isfinite().all() else 1.0
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)
