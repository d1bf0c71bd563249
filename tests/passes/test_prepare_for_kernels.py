"""Test what kernels need of a plan: flat sweeps, and zeros in the gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
from invariants import verify_plan
from planning import TORCH_ALGORITHMS
from spec_texts import read, spec

from optgen.ir.nodes import Const, Linear, Term, assigns
from optgen.ir.plan import Plan, Sweep
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.plan_rule import plans
from optgen.passes.prepare_for_kernels import zero_gradients
from optgen.passes.recognize_rules import codes_readers

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


NAMES = ("Adam", "Adafactor", "Muon")


def stores(plan: Plan) -> list[bool]:
    """Return for each sweep with a gradient stream whether the sweep stores the gradient."""
    streams = (s for sweep in plan.sweeps for s in sweep.streams)
    return [stream.stored for stream in streams if stream.role == "grad"]


@pytest.mark.parametrize("name", NAMES)
def test_the_last_sweep_that_reads_the_gradient_stores_zeros(name: str) -> None:
    algorithm = replace(TORCH_ALGORITHMS[name], zero_grad=True)
    for plan in map(hoist_scalars, plans(algorithm)):
        zeroing_plan = zero_gradients(plan)
        verify_plan(zeroing_plan)
        *others, last = stores(zeroing_plan)
        assert last
        assert not any(others)
        changed = [sweep for sweep in zeroing_plan.sweeps if sweep not in plan.sweeps]
        (sweep,) = changed
        *_, written = assigns(sweep.body)
        assert written.target.name == plan.algorithm.grad
        assert written.value == Linear((Term(Const(0), (), ()),))


def test_a_sweep_that_does_not_read_the_gradient_stores_zeros() -> None:
    """A rule may ignore its gradient; the step still leaves it at zero."""
    (planned,) = plans(replace(TORCH_ALGORITHMS["Adam"], zero_grad=True))
    (sweep,) = planned.sweeps
    sweep_without_gradient = Sweep(tuple(s for s in sweep.streams if s.role != "grad"), sweep.body)
    assert stores(zero_gradients(replace(planned, phases=(sweep_without_gradient,)))) == [True]


def test_a_plan_without_zero_grad_stays_as_it_is() -> None:
    (planned,) = plans(TORCH_ALGORITHMS["Adam"])
    assert zero_gradients(planned) is planned
