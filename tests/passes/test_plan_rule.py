"""Test plans of torch's rules, and of small rules that a pass could easily break."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import Golden
from invariants import verify_plan
from plan_run import run_plan
from planning import PASSES, RULES
from spec_texts import read, spec

from optgen.ir.evaluate import evaluate
from optgen.ir.nodes import RuleError
from optgen.ir.print_ir import to_text
from optgen.passes import all_passes, plan_rule
from optgen.passes.all_passes import Target
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.plan_rule import plan, plans

ROOT = Path(__file__).parents[2]
MOMENTUM = 'm=state("exp_avg")'
SCALAR = 's=state("mu", shape="scalar", init=1)'


@pytest.mark.parametrize("passes", ["hoisted", "folded and hoisted"])
@pytest.mark.parametrize("name", RULES)
def test_plans_of_the_catalogue_are_as_recorded(name: str, passes: str, golden: Golden) -> None:
    golden.check(to_text(PASSES[passes](RULES[name])))


TARGETS = {name: each for name, each in vars(all_passes).items() if isinstance(each, Target)}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_driver_runs_the_list_of_a_target_in_order(target: Target) -> None:
    algorithm = RULES["Adam"]
    request = plan_rule.Request({}, target.order)

    listed = plan_rule._run(target.passes, algorithm, request)

    driven = plan_rule.target_plan(algorithm, {}, target)
    assert to_text(listed) == to_text(driven)
    assert listed.phases == driven.phases


def test_every_pass_that_a_list_names_is_asked_for_what_exists() -> None:
    asked = {name for each in TARGETS.values() for p in each.passes for name in p.asks}

    assert asked == {"facts", "order", "separate_versions"}


FRAGILE_RULES = {
    "like terms are added up": spec("p = p - lr * t * p - (g + g) * 0.5"),
    "nothing is left": spec("p = p + lr * (g - g)"),
    "a number is left": spec("p = maximum(g + (lr - g), p)"),
    "a number leaves a root where it is not negative": spec(
        "p = p - sqrt(lr * g**2) - sqrt(c * g**2)", hypers="lr=hyper(1, ge=0), c=hyper(1)"
    ),
    "a root keeps what one branch makes negative": spec(
        "c = -1", "if t > 3:", "    c = 1", "p = p - lr * sqrt(c * g)"
    ),
    "a name used twice is not written out": spec("u = g / (g + 1)", "p = p - lr * u * (u + 1)"),
    "a copy of what changes": spec("u = p", "p = p - lr * g", "p = p - u"),
    "a copy that a branch may keep": spec(
        "g, u = m, g", "if t > 3:", "    g = 2 * g", "m = m + u", "p = p - lr * g", states=MOMENTUM
    ),
    "an old number keeps a copy": spec(
        "p = p - lr * s * g", "s = s / 2", "p = p * s", states=SCALAR
    ),
    "an old condition keeps a copy": spec(
        "if s > 0.3:", "    p = p - lr * g", "s = s / 2", states=SCALAR
    ),
    "a scale that both arms share": spec(
        "if t > 3:", "    u = lr * g", "else:", "    u = lr * p", "p = p - u / 3"
    ),
    "a shared scale that an arm reads": spec(
        "if t > 3:", "    u = lr * g", "    p = u * u", "else:", "    u = lr * p", "p = p - u / 3"
    ),
    "a shared scale of what changes": spec(
        "if t > 3:", "    u = lr * m", "else:", "    u = lr * p", "m = m + g", "p = p - u",
        states=MOMENTUM,
    ),
    "a number for each arm": spec(
        "if t > 3:", "    p = p - lr / (t - 3) * g", "else:", "    p = p - lr / t * g"
    ),
    "optional numbers stay where they are asked for": spec(
        "if c is not None:", "    g = g * (lr + c)", "p = p - lr * g",
        hypers="lr=hyper(1), c=hyper(None, optional=True)",
    ),
    "names that the generated code uses are replaced": spec(
        "grad = g * g", "param = lr * grad", "p = p - param * (grad + 1)"
    ),
    "where on a number": spec("p = p - where(t > 3, lr * g, g)"),
}  # fmt: skip


@pytest.mark.parametrize("case", FRAGILE_RULES)
def test_a_plan_is_as_recorded_and_keeps_the_meaning(case: str, golden: Golden) -> None:
    algorithm = read(FRAGILE_RULES[case])
    planned = hoist_scalars(plan(algorithm))
    verify_plan(planned)
    golden.check(to_text(planned))

    hypers = {h.name: h.default for h in algorithm.hypers}
    param, grad = torch.tensor([2.0, 3.0]).double(), torch.tensor([0.5, 0.25]).double()
    state: dict[str, object] = {}
    for _ in range(5):
        expected, expected_state = evaluate(algorithm, hypers, param, grad, state, torch.float64)
        found, found_state = run_plan(planned, hypers, param, grad, state)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13, equal_nan=True)
        for key in expected_state:
            torch.testing.assert_close(
                found_state[key], expected_state[key], rtol=1e-13, atol=1e-13
            )
        param, state = expected, expected_state


def test_plans_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from planning import PASSES, RULES\n"
        "from optgen.ir.print_ir import to_text\n"
        "print(*(to_text(plan(rule)) for plan in PASSES.values() for rule in RULES.values()))"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ
            | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert texts[0].count("plan ") == len(PASSES) * len(RULES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (spec("g, p = p, lr * g", "p = g"), "the rule changes no tensor"),
        (
            spec("if factored(p):", "    p = p - lr * g", "else:", "    g, p = p, g", "    p = g"),
            "the rule changes no tensor of parameters that are not factored",
        ),
    ],
)
def test_a_rule_that_changes_no_tensor_is_refused(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=rf"^{message}$") as refused:
        plans(read(text))
    assert refused.value.hint == "p = …, the update"
