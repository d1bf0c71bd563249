"""Test that a found rule's code is written as a person writes it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest
import torch

from optgen.importer import layout
from optgen.importer.meanings import meanings, means_of_squares
from optgen.importer.source_of import paper_of, provenance
from optgen.importer.statements import Assign, If, Item, printed, substituted
from optgen.importer.tidy import tidied


def written(*items: Item) -> list[str]:
    """Return the lines of tidied code, whose numbers are lr, beta, eps and t."""
    return list(printed(tidied(items, {"lr", "beta", "eps", "t"}, {"p", "m", "v"}), ""))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("m", "lerp(m, g, 1 - beta)", "m = lerp(m, g, 1 - beta)"),
        ("m", "m * beta + g * (1 - beta)", "m = beta * m + (1 - beta) * g"),
        ("p", "p * (1 - lr * eps)", "p = p - lr * eps * p"),
        ("p", "p + -lr * m", "p = p - lr * m"),
        ("p", "p - g * 2.0 * lr", "p = p - 2 * lr * g"),
        ("p", "p - lr * (m * (1 / v))", "p = p - lr * m / v"),
        ("p", "p - lr * (1 / v * g)", "p = p - lr * g / v"),
        ("v", "v + g * g", "v = v + g**2"),
        ("v", "(v + g) ** 0.5", "v = sqrt(v + g)"),
        ("v", "(v + g) ** -1.5", "v = (v + g) ** -1.5"),
        ("p", "p - (m - (v - g))", "p = p - (m - (v - g))"),
        ("p", "p / (m / v) * g", "p = p / (m / v) * g"),
        ("p", "(-m) ** 2 - -(m ** 2)", "p = (-m) ** 2 + m**2"),
        ("p", "where(m > 0 and not v == 1, p, g)", "p = where(m > 0 and not v == 1, p, g)"),
    ],
)
def test_an_expression_is_written_in_order(name: str, value: str, expected: str) -> None:
    assert written(Assign(name, value)) == [expected]


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0.001, "1e-3"),
        (1e-08, "1e-8"),
        (2.5e-7, "2.5e-7"),
        (0.05, "0.05"),
        (0.9, "0.9"),
        (1.0, "1.0"),
        (0, "0"),
        ((0.9, 0.999), "(0.9, 0.999)"),
        ((1,), "(1,)"),
        (1e300, "1e300"),
    ],
)
def test_a_number_keeps_its_value(x: object, text: str) -> None:
    assert layout.number(x) == text
    assert ast.literal_eval(text) == x


def test_a_variable_that_is_read_once_stands_in_its_place() -> None:
    lines = written(Assign("step_size", "lr / (1 - beta ** t)"), Assign("p", "p - step_size * m"))

    assert lines == ["p = p - lr / (1 - beta**t) * m"]


def test_a_variable_stays_whose_value_would_change_before_it_is_read() -> None:
    code = Assign("old", "m * 2"), Assign("m", "g"), Assign("p", "p - old")

    assert written(*code) == ["old = 2 * m", "m = g", "p = p - old"]


def test_an_answered_condition_is_not_asked_again() -> None:
    inner = If("lr", (Assign("m", "g"),), (Assign("m", "-g"),))
    code = If("lr", (Assign("v", "g"), inner), (inner, Assign("p", "m")))

    assert written(code) == ["if lr:", "    v = g", "    m = g", "else:", "    m = -g", "    p = m"]


def test_a_condition_on_a_changed_name_is_asked_again() -> None:
    inner = If("a > 0", (Assign("m", "g"),), (Assign("m", "-g"),))
    code = If("a > 0", (Assign("a", "a - lr"), inner), (Assign("m", "v"),))

    assert written(Assign("a", "v"), code).count("    if a > 0:") == 1


def test_common_ends_of_both_sides_stand_outside() -> None:
    first, last = Assign("m", "g"), Assign("p", "p - m")
    code = If("lr", (first, Assign("v", "g"), last), (first, Assign("v", "-g"), last))

    assert written(code) == ["m = g", "if lr:", "    v = g", "else:", "    v = -g", "p = p - m"]


def test_a_long_line_is_divided_at_its_operators() -> None:
    value = "p - " + " * ".join(f"a_long_name_{n}" for n in range(8))

    lines = list(layout.assignment("    ", "p", value))

    assert lines[:4] == [
        "    p = (",
        "        p",
        "        - a_long_name_0",
        "        * a_long_name_1",
    ]
    assert max(map(len, lines)) <= 100
    assert ast.dump(ast.parse("".join(lines).strip())) == ast.dump(ast.parse(f"p = {value}"))


def test_the_head_names_the_source_and_its_licence() -> None:
    text = provenance(torch.optim.SGD)

    assert text.startswith("SGD, imported from torch.optim.sgd.\n\nThe licence of torch 2")
    assert "BSD-3-Clause" in text


def test_a_class_without_a_package_has_no_licence() -> None:
    assert provenance(type("Mine", (), {})) == f"Mine, imported from {__name__}."


def test_the_paper_of_a_docstring_is_found_if_there_is_one() -> None:
    one = "As in https://arxiv.org/abs/1412.6980."

    assert paper_of(type("Mine", (), {"__doc__": one})) == "https://arxiv.org/abs/1412.6980"
    assert not paper_of(type("Mine", (), {"__doc__": one + " arxiv.org/abs/1711.05101"}))
    assert not paper_of(type("Mine", (), {}))


def test_a_mean_of_squares_is_found() -> None:
    code = (
        Assign("v", "beta2 * v + (1 - beta2) * g**2"),
        Assign("m", "beta1 * m + (1 - beta1) * g"),
        Assign("n", "beta1 * n + (1 - beta2) * g**2"),
    )

    assert means_of_squares(code) == {"v"}


def test_a_change_of_an_argument_s_other_name_reads_the_argument() -> None:
    change = If("t > 50", (Assign("rate", "0.1 * rate"),), ())
    items = [Assign("rate", "lr"), change, Assign("p", "p - rate * g"), Assign("m", "rate * g")]
    made = list(printed(tidied(items, {"lr", "t"}, {"p", "m"})))
    assert [line.strip() for line in made[:3]] == ["rate = lr", "if t > 50:", "rate = 0.1 * lr"]


def test_a_special_case_of_the_general_code_is_left_out() -> None:
    general = (Assign("x", "beta * m"), Assign("x", "x + (1 - beta) * g"), Assign("p", "p - x"))
    code = If("beta == 1", (Assign("p", "p - m"),), general)

    assert written(code) == ["p = p - (beta * m + (1 - beta) * g)"]


def test_another_case_than_the_general_code_s_stays() -> None:
    code = If("beta == 1", (Assign("p", "p - g"),), (Assign("p", "p - beta * m"),))

    assert written(code)[0] == "if beta == 1:"


def test_numbers_stand_where_they_are_read_and_ifs_on_one_condition_are_one() -> None:
    first = If("eps", (Assign("rate", "lr * eps"),), ())
    last = If(
        "eps", (Assign("p", "p - rate * m"), Assign("v", "rate * g")), (Assign("p", "p - g"),)
    )
    code = Assign("rate", "lr"), first, Assign("m", "m + g"), last

    assert written(*code) == [
        "m = m + g",
        "if eps:",
        "    rate = lr * eps",
        "    p = p - rate * m",
        "    v = rate * g",
        "else:",
        "    p = p - g",
    ]


def test_a_changed_gradient_is_named_before_its_change_is_read() -> None:
    code = (
        If("t == 1", (Assign("m", "-g * v"),), ()),
        Assign("g", "g * v"),
        Assign("p", "p - g + m"),
    )

    assert written(*code)[:3] == ["g = g * v", "if t == 1:", "    m = -g"]


def test_a_sum_over_all_parameters_stays_outside_of_branches() -> None:
    code = (
        Assign("total", "sum(g ** 2, over='all')"),
        If("lr", (Assign("g", "g / (sqrt(total) + eps)"),), ()),
        Assign("p", "p - g"),
    )

    assert written(*code)[:3] == [
        'total_norm = norm(g, over="all")',
        "if lr:",
        "    g = g / (total_norm + eps)",
    ]


def test_code_says_what_arguments_mean() -> None:
    decoupled = If("fixed", (Assign("p", "p - d * p"),), (Assign("p", "p - lr * d * p"),))
    code = (
        If("d", (If("own", (decoupled,), (Assign("g", "g + d * p"),)),), ()),
        Assign("m", "beta * m + (1 - damp) * g"),
        Assign("p", "p - lr * (nu * m + (1 - nu) * g)"),
    )
    found = meanings(code, {"m": "start"}, {"nus": ["nu"]})

    assert found["own"].startswith("Shrink the parameter itself")
    assert found["fixed"] == "Decay by `d` alone, not times `lr`"
    assert found["damp"] == "Fraction of the gradient that is not added to the momentum"
    assert found["start"] == "Start value of m"
    assert "nus" not in found  # m is no average
    assert not meanings([Assign("p", "p - lr * g")], {}, {})


@pytest.mark.parametrize(
    ("state", "is_average"),
    [
        ("beta * m + (1 - beta) * g", True),
        ("lerp(m, g, 1 - beta)", True),
        ("m - lr * g", False),
        ("beta * m + g", False),
    ],
)
def test_a_share_of_a_running_average_is_one_of_an_average(state: str, is_average: bool) -> None:
    code = Assign("m", state), Assign("p", "nu * m + (1 - nu) * p")
    found = meanings(code, {"m": "0"}, {"nus": ["nu"]})

    text = "Shares of the running averages beside the present values"
    assert found.get("nus") == (text if is_average else None)


@pytest.mark.parametrize(
    ("condition", "says_it"),
    [("top", True), ("top > 0", True), ("top != 0", True), ("other", False), ("top < 9", False)],
)
def test_zero_does_not_clip_where_the_code_asks_for_it(condition: str, says_it: bool) -> None:
    norm, clip = Assign("n", "norm(g, over='all')"), Assign("g", "g * minimum(top / n, 1)")

    found = meanings([norm, If(condition, (clip,), ())], {}, {})

    assert ("0 does not clip" in found.get("top", "")) is says_it
    assert "top" not in meanings([norm, clip], {}, {})


@pytest.mark.parametrize(
    ("step", "divides"),
    [
        ("g / (sqrt(largest) + eps)", True),
        ("g * largest ** -0.5", True),
        ("g / d", True),
        ("g * largest", False),
        ("largest / (sqrt(v) + eps)", False),
    ],
)
def test_the_largest_second_moment_is_divided_by(step: str, divides: bool) -> None:
    kept = Assign("largest", "maximum(largest, v)"), Assign("d", "sqrt(largest)")
    code = (
        Assign("v", "beta * v + (1 - beta) * g ** 2"),
        If("amsgrad", (*kept, Assign("u", step)), (Assign("u", "g / sqrt(v)"),)),
        Assign("p", "p - lr * u"),
    )

    assert ("amsgrad" in meanings(code, {"v": "0", "largest": "0"}, {})) is divides


def test_names_are_substituted_at_once() -> None:
    assert substituted("a + b", {"a": "b * c", "b": "2"}) == "b * c + 2"


def special_case(then: Sequence[Item], other: Sequence[Item]) -> list[str]:
    """Return the lines of a rule that asks if a number is 1."""
    return written(If("eps == 1", tuple(then), tuple(other)), Assign("p", "p - d"))


def test_a_case_that_differs_by_an_earlier_value_stays() -> None:
    then = Assign("m", "m + g"), Assign("d", "m / (abs(m) + 1)")
    other = Assign("v", "m"), Assign("m", "m + eps * g"), Assign("d", "v / (abs(m) + 1)")

    assert any("eps == 1" in line for line in special_case(then, other))


@pytest.mark.parametrize(
    ("part", "stays"),
    [
        ("abs(p)", False),
        ("abs(p / (1 - eps))", True),
        ("sqrt(p)", True),
        ("p ** beta", True),
        ("log(p)", True),
        ("max_abs(p)", False),
    ],
)
def test_a_case_that_guards_an_infinite_number_stays(part: str, stays: bool) -> None:
    lines = special_case([Assign("d", "g")], [Assign("d", f"g + (1 - eps) * {part}")])

    assert any("eps == 1" in line or "eps != 1" in line for line in lines) is stays
