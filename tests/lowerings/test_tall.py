"""Test rules that ask whether a parameter is tall: every lowering against the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from spec_texts import LR, spec
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

RULES = {
    "elements": (
        'm=state("exp_avg", when="tall"), v=state("exp_avg_sq", when="not tall", init=1)',
        "if tall(p):",
        "    m = lerp(m, g, 0.25)",
        "    p = p - lr * m",
        "else:",
        "    v = v / 2 + g**2",
        "    p = p - lr * g / sqrt(v)",
    ),
    "the shorter side": (
        'r=state("rows", shape="row", when="tall"), k=state("cols", shape="col", when="factored")',
        "if factored(p):",
        "    k = lerp(k, col_mean(g**2), 0.5)",
        "    if tall(p):",
        "        r = lerp(r, row_mean(g**2), 0.5)",
        "        g = g / (sqrt(r) + 0.5)",
        "    g = g / (sqrt(k) + 0.5)",
        "p = p - lr * g * rms(p)",
    ),
    "without a state": (
        "",
        "g = g / (1 + rms(g))",
        "if not tall(p) and t > 1:",
        "    g = 2 * g",
        "p = p - where(tall(p), lr * g, sign(g) * lr)",
    ),
}
SHAPES = ((5,), (4, 3), (3, 4), (), (2, 3, 3), (2, 2, 5), (1, 1), (70, 3))


def spec_of_case(case: str) -> Spec:
    states, *body = RULES[case]
    return Spec("Made", spec(*body, states=states, hypers=LR), "made.py", 1)


def assert_steps_equal_the_oracles(case: str, lowering: Any) -> None:
    """Compare four steps with the oracle: parameters, and the states that exist."""
    source = spec_of_case(case)
    (algorithm,) = read_spec(source)
    generator = torch.Generator().manual_seed(3)

    def random_tensor(shape: Any) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    params = [random_tensor(shape) for shape in SHAPES]
    expected: list[tuple[Tensor, dict[str, Any]]] = [(p.double(), {}) for p in params]
    optimizer = optgen.load(source)(params)
    for _ in range(4):
        for index, param in enumerate(params):
            param.grad = random_tensor(param.shape)
            value, state = expected[index]
            expected[index] = evaluate(algorithm, {"lr": 0.1}, value, param.grad, state)
        with use_lowering(lowering):
            optimizer.step()
    for param, (value, state) in zip(params, expected, strict=True):
        torch.testing.assert_close(param.double(), value, rtol=1e-5, atol=1e-6)
        found = optimizer.state[param]
        assert found.keys() == state.keys()
        for key in state.keys() - {"step"}:
            torch.testing.assert_close(found[key].double(), state[key], rtol=1e-5, atol=1e-6)


@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("case", RULES)
def test_cpu_lowerings_equal_the_oracle(case: str, lowering: str) -> None:
    assert_steps_equal_the_oracles(case, lowering)


@inside_interpreter
@pytest.mark.parametrize("case", RULES)
def test_kernels_equal_the_oracle(case: str) -> None:
    assert_steps_equal_the_oracles(case, "fused_triton")


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@outside_interpreter
def test_no_plan_is_made_for_tall_parameters_that_are_not_factored() -> None:
    from optgen.passes.prepare_rule import fact_combinations

    (algorithm,) = read_spec(spec_of_case("the shorter side"))
    assert len(list(fact_combinations(algorithm))) == 3
