"""Test the instructions of a rule, and that no in-place operation overwrites a value in use."""

from __future__ import annotations

import pytest
from lowerings.rules import RULES, read

from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.inline_scalars import inline_scalars
from optgen.passes.plan_rule import plan
from optgen.passes.select_torch_ops import select_torch_ops
from optgen.passes.sweep_algebra import fold_denominators
from optgen.passes.torch_ops import Alias, Branch, Instruction, Op, Reduce


def steps(rule: str) -> list[Op | Alias]:
    """Return every operation of a rule's first sweep, without `maximize` and reductions."""
    planned = inline_scalars(hoist_scalars(fold_denominators(plan(read(rule)))))
    sweep = planned.sweeps[0]

    def operations(program: tuple[Instruction, ...]) -> list[Op | Alias]:
        found: list[Op | Alias] = []
        for instruction in program:
            if isinstance(instruction, Branch):
                found += operations(instruction.then) + operations(instruction.orelse)
            elif instruction.quote != ("g = -g",):
                found += [each for each in instruction.operations if not isinstance(each, Reduce)]
        return found

    return operations(select_torch_ops(planned, sweep))


def line(step: Op | Alias) -> str:
    """Return the line `target = function source operands`, with `#` for a number.

    The line of an in-place operation has no target, and its function ends with `_`.
    """
    if isinstance(step, Alias):
        return f"{step.target} = {step.source}"
    operands = [o if isinstance(o, str) else "#" for o in (step.source, *step.args)]
    if step.inplace:
        return " ".join([f"{step.function}_", *operands])
    return " ".join([f"{step.target} = {step.function}", *operands])


def lines(rule: str) -> list[str]:
    """Return a line for every operation of a rule's first sweep."""
    return [line(step) for step in steps(rule)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("p = p - lr * g", ["add_ param grad"]),
        ("p = p - lr * c * p - lr * g", ["mul_ param #", "add_ param grad"]),
        (
            "m = beta * m + (1 - beta) * g; p = p - m",
            ["lerp_ exp_avg grad #", "add_ param exp_avg"],
        ),
        (
            "m = beta * m + g; p = p - m",
            ["mul_ exp_avg #", "add_ exp_avg grad", "add_ param exp_avg"],
        ),
        ("v = v + c * g**2; p = p - v", ["addcmul_ exp_avg_sq grad grad", "add_ param exp_avg_sq"]),
        (
            "v = maximum(v, g); p = p - lr * v",
            ["maximum_ exp_avg_sq grad", "add_ param exp_avg_sq"],
        ),
        (
            "v = maximum(c * v, abs(g) + eps); p = p - lr * v",
            [
                "mul_ exp_avg_sq #",
                "operand = abs grad",
                "add_ operand #",
                "maximum_ exp_avg_sq operand",
            ],
        ),
        (
            "v = maximum(c * v, abs(v) * g); p = p - lr * v",
            [
                "update = mul exp_avg_sq #",
                "operand = abs exp_avg_sq",
                "mul_ operand grad",
                "maximum_ update operand",
                "copy_ exp_avg_sq update",
            ],
        ),
        (
            "v = where(g > c, v, 0 * g); p = p - lr * v",
            [
                "condition = > grad #",
                "value = mul grad #",
                "update = where condition exp_avg_sq value",
                "copy_ exp_avg_sq update",
            ],
        ),
        (
            "m = where(g > c, 0, g); p = p - lr * m",
            ["condition = > grad #", "copy_ exp_avg grad", "fill_where_ exp_avg condition #"],
        ),
        (
            "m = where(g > c, m, lr); p = p - lr * m",
            [
                "condition = > grad #",
                "fill_where_not_ exp_avg condition #",
                "add_ param exp_avg",
            ],
        ),
        (
            "m = m * where(g > c, lr, beta); p = p - lr * m",
            [
                "condition = > grad #",
                "value = new_full param #",
                "chosen = where condition value #",
                "mul_ exp_avg chosen",
            ],
        ),
        ("m = tanh(m) + g; p = p - lr * m", ["tanh_ exp_avg", "add_ exp_avg grad"]),
        ("m = atan2(m, g); p = p - lr * m", ["atan2_ exp_avg grad", "add_ param exp_avg"]),
        (
            "m = atan2(m, c); p = p - lr * m * g",
            ["operand = new_full exp_avg #", "atan2_ exp_avg operand"],
        ),
        (
            "m = atan2(c, g); p = p - lr * m",
            [
                "operand = new_full grad #",
                "update = atan2 operand grad",
                "copy_ exp_avg update",
            ],
        ),
        ("v = sqrt(v) + g; p = p - lr * v", ["sqrt_ exp_avg_sq", "add_ exp_avg_sq grad"]),
        ("g = g + c * p; p = p - lr * g", ["grad = add grad param", "add_ param grad"]),
        (
            "p = p - lr * g / (sqrt(g**2 / (1 - beta)) + eps)",
            ["denom = mul grad grad", "sqrt_ denom", "add_ denom #", "addcdiv_ param grad denom"],
        ),
        ("m = g; p = p - lr * m", ["copy_ exp_avg grad", "add_ param exp_avg"]),
        ("m = c + 0 * g + 2; p = p - m", ["update = mul grad #", "add_ update #"]),
    ],
)
def test_a_rule_has_these_instructions(rule: str, expected: list[str]) -> None:
    assert lines(rule)[: len(expected)] == expected


def test_a_variable_of_the_rule_keeps_its_value() -> None:
    """The statement of y changes y in place, but not x, although nothing reads x afterwards."""
    assert lines("x = g**2 + c * p; y = sqrt(x) + eps; p = p - lr * g / y; m = m + y")[:4] == [
        "x = mul grad grad",
        "add_ x param",
        "y = sqrt x",
        "add_ y #",
    ]


def test_a_tensor_with_two_names_is_not_overwritten() -> None:
    written = lines("x = g**2 + c * p; y = x; z = sqrt(x) + g; p = p - lr * z * abs(y); m = y + m")

    assert "sqrt_ x" not in written
    assert "z = sqrt x" in written


@pytest.mark.parametrize(
    "change", ["2 * m", "m + g", "lerp(m, g, c)", "maximum(m, g)", "where(g > c, 2, m)"]
)
def test_a_state_with_an_alias_is_not_changed_in_place(change: str) -> None:
    """The first sweep only sums p and the new m. It stores neither, so p may be an alias of m."""
    rule = f"m = exp(m); p = m; m = {change}; m = m + mean(p) - mean(m); p = p + lr * g * m"
    first, second, alias, *changes = lines(rule)

    assert (first, second) == ("exp_avg_new = exp exp_avg", "exp_avg = exp_avg_new")
    assert alias == "param = exp_avg"
    assert not [line for line in changes if "_ exp_avg" in line]


def test_nested_conditions_have_different_names() -> None:
    assert lines("m = where(where(g > c, lr, -g) > beta, g, -g); p = p - lr * m")[:4] == [
        "condition_2 = > grad #",
        "value = neg grad",
        "fill_where_ value condition_2 #",
        "condition = > value #",
    ]


def test_a_repeated_expression_is_computed_once() -> None:
    written = lines("m = where(sqrt(g**2 + eps) > c, sqrt(g**2 + eps), g); p = p - lr * m")

    assert [line for line in written if "sqrt" in line] == ["sqrt_ value"]
    assert "condition = > value #" in written


def test_a_state_keeps_its_value_until_its_alias_is_read() -> None:
    """The term `abs(g) * g` reads the old state by the alias g."""
    written = lines("g = m; m = beta * m + abs(g) * g; p = p - lr * m")

    assert "mul_ exp_avg #" not in written
    assert written[-2:] == ["copy_ exp_avg update", "add_ param exp_avg"]


@pytest.mark.parametrize("name", RULES)
def test_the_gradient_is_never_overwritten(name: str) -> None:
    """No in-place operation writes to the gradient, or to an alias of it or of a state."""
    aliases = {"grad"}
    for step in steps(RULES[name]):
        if isinstance(step, Alias):
            is_alias = step.source in aliases or step.source in ("param", "exp_avg", "exp_avg_sq")
            (aliases.add if is_alias else aliases.discard)(step.target)
        elif step.inplace:
            assert step.target not in aliases
        else:
            aliases.discard(step.target)
