"""Test that a nonnegative divisor of rows and columns becomes factors of their inverses."""

from __future__ import annotations

import pytest
import torch
from plan_run import run_plan
from spec_texts import read as read_text
from spec_texts import spec

from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.ir.nodes import Call, Linear, expressions, walk
from optgen.ir.plan import Finish, Plan
from optgen.passes.hoist_between_sweeps import invert_factors
from optgen.passes.plan_rule import plan

STATES = 'r=state("r", shape="row"), c=state("c", shape="col")'
HYPERS = "lr=hyper(0.1, ge=0), eps=hyper(1e-3, ge=0)"
MOMENTS = "r = 0.5 * r + row_mean(g**2); c = 0.5 * c + col_mean(g**2)"


def read(body: str) -> Algorithm:
    lines = ['require(ndim(p) > 1, "no matrix: {shape}")', *MOMENTS.split("; "), *body.split("; ")]
    hypers = HYPERS if "eps" in body else HYPERS.split(", eps")[0]
    return read_text(spec(*lines, states=STATES, hypers=hypers))


def count_roots_and_divisions(planned: Plan) -> int:
    """Return the number of roots and divisions in the sweeps."""
    nodes = [n for s in planned.sweeps for e in expressions(s.body) for n in walk(e)]
    roots = sum(isinstance(n, Call) and n.op == "sqrt" for n in nodes)
    terms = [term for n in nodes if isinstance(n, Linear) for term in n.terms]
    return roots + sum(len(term.divisors) for term in terms)


STATEMENTS_TO_INVERT = {
    "a root of a product": "p = p - lr * g / sqrt(r * c)",
    "a bound": "p = p - lr * g / sqrt(maximum(r * c, eps**2))",
    "an upper bound": "p = p - lr * g / minimum(sqrt(r * c), 3)",
    "a quotient": "p = p - lr * g / sqrt(r / c)",
    "a sum before": "p = p - lr * g / (sqrt(r * c) * sqrt(maximum(c, abs(r))))",
}
STATEMENTS_TO_KEEP = {
    "a sum": "p = p - lr * g / sqrt(r + c)",
    "elements": "p = p - lr * g / sqrt(g**2 * r * c)",
    "rows that may be negative": "r = row_mean(g); p = p - lr * g / maximum(r, c)",
    "an upper bound that may be negative": "p = p - lr * g / minimum(r * c, eps - 1)",
    "only in a branch": "if t > 3:\n        r = 2 * r; p = p - lr * g / sqrt(r * c)",
}


@pytest.mark.parametrize("name", STATEMENTS_TO_INVERT)
def test_a_nonnegative_product_of_rows_and_columns_is_inverted(name: str) -> None:
    algorithm = read(STATEMENTS_TO_INVERT[name])
    planned = plan(algorithm)
    inverted = invert_factors(planned)

    assert count_roots_and_divisions(planned) > count_roots_and_divisions(inverted) == 0
    hypers = {h.name: h.default for h in algorithm.hypers} | {"maximize": False}
    param, grad = torch.randn(2, 6, 5, dtype=torch.float64)
    expected, states = evaluate(algorithm, hypers, param, grad, {})
    found, found_states = run_plan(inverted, hypers, param, grad, {})
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(found_states["r"], states["r"], rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", STATEMENTS_TO_KEEP)
def test_any_other_divisor_is_kept(name: str) -> None:
    planned = plan(read(STATEMENTS_TO_KEEP[name]))

    assert count_roots_and_divisions(planned) > 0
    assert invert_factors(planned) == planned


def test_all_sweeps_share_one_inverse() -> None:
    algorithm = read("u = g / sqrt(r * c); p = p - lr * u / (1 + norm(u))")
    finishes = [p for p in invert_factors(plan(algorithm)).phases if isinstance(p, Finish)]
    names = [a.target.name for f in finishes for a in f.body if "rsqrt" in a.target.name]

    assert names == ["r_rsqrt", "c_rsqrt"]


def test_rows_of_zeros_give_the_right_step() -> None:
    """The inverse of a zero row is infinite, and the inverted bound replaces it."""
    algorithm = read("p = p - lr * g / sqrt(maximum(r * c, eps**2))")
    hypers = {h.name: h.default for h in algorithm.hypers} | {"maximize": False}
    param, grad = torch.randn(2, 6, 5, dtype=torch.float64)
    grad[2], grad[:, 3] = 0, 0
    expected, _ = evaluate(algorithm, hypers, param, grad, {})
    found, _ = run_plan(invert_factors(plan(algorithm)), hypers, param, grad, {})

    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
