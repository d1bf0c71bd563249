"""Test which statements between matrix words become sweeps, and the code of these sweeps."""

from __future__ import annotations

import pytest
from conftest import Golden
from lowerings.rules_with_outlined_sweeps import rule_with_products, spec_of
from lowerings.test_whole_matrices import MATRIX
from spec_files import spec_file
from spec_texts import spec

from optgen import emit
from optgen.ir.nodes import Assign, Call, assigns, refs
from optgen.ir.plan import Plan
from optgen.lowerings.foreach import OUTLINED
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.lowerings.optimizer import FUNCTION
from optgen.passes.outline_sweeps import MOST_FUNCTIONS, outline_sweeps
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec


def test_equal_sweeps_share_a_function() -> None:
    """The plans for vectors and for matrices call one function for equal sweeps."""
    states = 'm=state("exp_avg"), L=state("left", shape=("rows", "rows"), when="factored")'
    body = ("m = m + g", "p = p - lr * m", "if factored(p):", "    L = L + p @ transpose(g)")
    (algorithm,) = read_spec(Spec("Made", spec(*body, states=states), "made.py", 1))
    outlined = outline_sweeps(algorithm)
    calls = [called_sweeps(plan) for plan in outlined.plans]
    assert len(outlined.plans) == 2
    assert len(outlined.functions) < sum(map(len, calls))


def called_sweeps(plan: Plan) -> list[str]:
    return [
        s.target.name for s in assigns(plan.sweeps[0].body) if s.target.name.startswith("sweep")
    ]


def test_a_state_that_is_read_and_written_goes_through_memory_once() -> None:
    """The second moment and the quotient that reads it are one sweep, which waits for a product."""
    (algorithm,) = read_spec(spec_file("soap"))
    factored = outline_sweeps(algorithm).plans[0]
    (call,) = (
        stmt.value
        for stmt in assigns(factored.sweeps[0].body)
        if stmt.target.name.startswith("sweep") and "exp_avg_sq" in names_read(stmt)
    )
    assert isinstance(call, Call)
    assert len(call.args) == 9  # four lists and five numbers


def names_read(stmt: Assign) -> set[str]:
    return {ref.name for ref in refs(stmt.value)}


@pytest.mark.parametrize(("products", "sweeps"), [(3, 4), (MOST_FUNCTIONS, MOST_FUNCTIONS)])
def test_a_rule_has_no_more_than_the_most_functions(products: int, sweeps: int) -> None:
    (algorithm,) = read_spec(rule_with_products(products))
    assert len(outline_sweeps(algorithm).functions) == sweeps


def test_a_rule_that_reduces_over_parameters_has_no_outlined_sweeps() -> None:
    body = ("n = norm(g, over='all')", "p = p - lr * g @ transpose(g) @ g / (1 + n)")
    (algorithm,) = read_spec(Spec("Made", spec(MATRIX, *body), "made.py", 1))
    assert not outline_sweeps(algorithm).functions


@pytest.mark.parametrize("case", ["adam between products", "orthogonalized under a flag"])
def test_code_is_printed_as_recorded(case: str, golden: Golden) -> None:
    (algorithm,) = read_spec(spec_of(case))
    ruff = emit.find_ruff()
    golden.check(emit.render(algorithm, OUTLINED, ruff), "outlined")
    first = outline_sweeps(algorithm).functions[0]
    golden.check(emit.render(first, FUSED_CPU, ruff), "sweep1-cpp")
    golden.check(emit.render(first, FUNCTION, ruff), "sweep1")
