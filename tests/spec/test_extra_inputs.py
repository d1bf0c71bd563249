"""Test rules with extra inputs: how they are read, and their errors."""

from __future__ import annotations

import pytest
from conftest import Golden
from spec_texts import UPDATE, read, spec

from optgen.ir.print_ir import to_text
from optgen.passes.latex import to_latex
from optgen.passes.plan_rule import plan
from optgen.spec.errors import SpecError

INPUTS = 'p, g, t, h=given("hessian")'
M = 'm=state("exp_avg")'
UPDATE_BY_H = "p = p - lr * g * h / t"


def if_given(*body: str, inputs: str = INPUTS, **more: str) -> str:
    """Return a rule that runs these lines only if its extra input `h` is given."""
    return spec("if given(h):", *(f"    {line}" for line in body), UPDATE, inputs=inputs, **more)


ERRORS = {
    "no argument": spec(UPDATE_BY_H, inputs="p, g, t, h=given()"),
    "no name": spec(UPDATE_BY_H, inputs='p, g, t, h=given("a b")'),
    "a number": spec(UPDATE_BY_H, inputs="p, g, t, h=given(1)"),
    "a name that step has": spec(UPDATE_BY_H, inputs='p, g, t, h=given("closure")'),
    "a word": spec(UPDATE_BY_H, inputs='p, g, t, h=given("sqrt")'),
    "given with an option": spec(UPDATE_BY_H, inputs='p, g, t, h=given("hessian", when="flag")'),
    "a state before the slash": spec(UPDATE_BY_H, inputs='p, g, t, h=state("hessian")'),
    "without an input": spec(UPDATE_BY_H, inputs="p, g, t, h"),
    "behind the slash": spec("m = m + h", UPDATE_BY_H, states=f'{M}, h=given("hessian")'),
    "behind the star": spec(UPDATE_BY_H, hypers='lr=hyper(0.1), h=given("hessian")'),
    "two of one name": spec(
        "p = p - lr * g * h * k / t", inputs=f'{INPUTS}, k=given("hessian")'
    ),
    "without use": spec("p = p - lr * g / t", inputs=INPUTS),
    "an assigned input": spec("h = 2 * h", UPDATE_BY_H, inputs=INPUTS),
    "read where it may be absent": if_given("g = g * h").replace(UPDATE, UPDATE_BY_H),
    "read in the other branch": if_given("g = g * h").replace(
        f"    {UPDATE}", f"    else:\n        g = g / h\n    {UPDATE}"
    ),
    "read in a where": spec("p = p - lr * where(given(h), g * h, g) / t", inputs=INPUTS),
    "given of a state": spec("if given(m):", "    m = m + g", "p = p - lr * m / t", states=M),
    "given without an argument": spec("if given():", "    g = 2 * g", UPDATE_BY_H, inputs=INPUTS),
    "given in a helper": spec(
        "p = p - lr * half(h) * g / t",
        inputs=INPUTS,
        before="def half(x):\n    y = where(given(x), 1, 2)\n    return y * x",
    ),
    "given in a requirement": if_given("g = g * h").replace(
        "    if", '    require(given(h), "no")\n    if', 1
    ),
    "fresh": spec("if fresh(h):", "    g = 2 * g", UPDATE_BY_H, inputs=INPUTS),
    "when of a state": if_given(
        "g = g * h", states='m=state("exp_avg", when="given_hessian")'
    ).replace(UPDATE, f"if given(h):\n        m = m + g\n    {UPDATE}"),
    "a hyperparameter named like the flag": if_given(
        "g = g * h", hypers="lr=hyper(0.1), given_hessian=flag(False)"
    ),
    "an input named like its flag": spec(
        "if given(given_a):",
        "    g = g * given_a",
        "p = p - lr * g / t",
        inputs='p, g, t, given_a=given("a")',
    ),
    "names that differ in case": spec(
        "p = p - lr * g * h * k / t", inputs='p, g, t, h=given("x"), k=given("X")'
    ),
    "the key of a state": if_given(
        "g = g * h", "m = m + h", states='m=state("hessian_input")'
    ).replace(UPDATE, f"m = m + g\n    {UPDATE}"),
    "sparse gradients": if_given(
        "g = g * h", decorator='@optimizer(paper="https://example.org", gradient="rows")'
    ),
    "an input of a function": "from optgen.spec import *\n\n\n@elementwise\n"
    'def f(a, b, h=given("c"), /):\n    """."""\n    a = b + h\n',
    "in a program": if_given("m = m + g * h", states=M).replace(UPDATE, "p = p - lr * g * m / t")
    + "\n\n@Made.train\ndef a(p, h, /):\n    p = h\n\n\n@Made.eval\ndef b(p, m, /):\n    p = m\n",
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_input_error(name: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        read(ERRORS[name])
    golden.check(str(raised.value))


def test_an_input_that_the_rule_does_not_ask_for_has_no_condition() -> None:
    algorithm = read(spec(UPDATE_BY_H, inputs=INPUTS))
    (state,) = algorithm.extra_inputs()

    assert (state.symbol, state.key, state.step_argument, state.when) == (
        "h",
        "hessian_input",
        "hessian",
        None,
    )
    assert not list(algorithm.checkpoint_states())
    assert [h.name for h in algorithm.hypers] == ["lr"]


def test_an_input_that_may_be_absent_has_a_condition(golden: Golden) -> None:
    text = if_given("m = lerp(m, h, 0.5)", states=M).replace(UPDATE, "p = p - lr * g * m / t")
    algorithm = read(text)

    assert algorithm.existence_condition("h") == plan(algorithm).algorithm.existence_condition(
        "hessian_input"
    )
    golden.check("\n".join([to_text(algorithm), to_text(plan(algorithm)), to_latex(algorithm)]))


def test_a_state_may_have_the_name_of_an_input() -> None:
    algorithm = read(spec("if given(h):", "    m = h", "p = p - lr * g * m / t", inputs=INPUTS,
                     states='m=state("hessian")'))  # fmt: skip

    assert [s.key for s in algorithm.states] == ["hessian", "hessian_input"]
