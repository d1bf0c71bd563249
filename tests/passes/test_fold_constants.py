"""Test that arithmetic on numbers alone is folded in float64, and that the rest stays."""

from __future__ import annotations

import math

import pytest
from spec_texts import UPDATE, read, spec

from optgen.ir.nodes import Assign, Call, Const, Expr, If, Ref, walk
from optgen.passes.fold_constants import fold, fold_constants

LR = Ref("lr")
FALSE, ONE, TWO = Const(False), Const(1), Const(2)


def call(word: str, *args: Expr | float) -> Call:
    return Call(word, tuple(a if isinstance(a, Call | Const | Ref) else Const(a) for a in args))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (call("*", 2, 3), 6),
        (call("/", 6, 3), 2.0),
        (call("**", 2, -3), 0.125),
        (call("abs", call("-", 2, 5)), 3),
        (call("%", -7, 3), 2),
        (call("maximum", 0.5, call("sqrt", 4)), 2.0),
        (call("<", 1, 2), True),
        (call("not", call("<", 1, 2)), False),
        (call("/", 1, 0), math.inf),
        (call("neg", 2), -2),
        (Const(2**40), 2.0**40),
    ],
)
def test_arithmetic_on_numbers_alone_is_folded(expr: Expr, expected: float) -> None:
    folded = fold(expr)
    assert folded == Const(expected)
    assert isinstance(folded, Const)
    assert type(folded.value) is type(expected)


def test_the_sign_of_a_zero_is_kept() -> None:
    folded = fold(call("neg", 0))
    assert isinstance(folded, Const)
    assert repr(folded.value) == "-0.0"


def test_two_negations_cancel_and_a_product_with_a_name_stays() -> None:
    assert fold(call("neg", call("neg", LR))) == LR
    assert fold(call("*", LR, call("+", 1, 1))) == call("*", LR, 2)
    assert fold(call("*", 0, LR)) == call("*", 0, LR)  # lr may be infinite


def test_a_known_side_decides_a_condition() -> None:
    flag = Ref("flag")
    assert fold(call("and", call("<", 2, 1), flag)) == Const(False)
    assert fold(call("or", flag, call("<", 2, 1))) == flag


def test_folding_keeps_the_number_of_terms_of_a_reduction() -> None:
    """The folded condition must stay a tensor like g, so that the sum has a term per element."""
    (stmt,) = fold_constants(read(spec("p = p - lr * g * sum(where(1 > 2 and g != 0, 1, 2))"))).rule
    assert isinstance(stmt, Assign)
    (total,) = (e for e in walk(stmt.value) if isinstance(e, Call) and e.op == "sum")
    (operand,) = total.args
    assert operand == Call(
        "where", (Call("==", (Ref("g"), Ref("g"))), *2 * [Call("where", (FALSE, ONE, TWO))])
    )


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("g > 0 and 1 > 2", call("<", Ref("g"), Ref("g"))),
        ("g > 0 or 1 < 2", call("not", call("<", Ref("g"), Ref("g")))),
        (
            "(g > 0 and 1 > 2) or lr > 1",
            call("or", call(">", LR, 1), call("<", Ref("g"), Ref("g"))),
        ),
        (
            "g > p and 1 > 2",
            call("and", call("<", Ref("g"), Ref("g")), call("<", Ref("p"), Ref("p"))),
        ),
    ],
)
def test_a_condition_of_elements_stays_a_condition_of_elements(
    condition: str, expected: Expr
) -> None:
    """Every element of g and p gets an answer; `g < g` is False at every element."""
    rule = spec(f"low = {condition}", "p = where(low, g, p - lr * g)")
    first, _ = fold_constants(read(rule)).rule
    assert isinstance(first, Assign)
    assert first.value == expected


def test_a_branch_with_a_known_condition_is_decided() -> None:
    algorithm = read(spec("if not (lr > 0 and 1 > 2):", "    g = 2 * g", UPDATE))
    first, last = fold_constants(algorithm).rule
    assert isinstance(first, Assign)
    assert first.target == Ref("g")
    assert isinstance(last, Assign)


@pytest.mark.parametrize(
    "body",
    [
        ("if flag_a:", "    p = p - lr * g", "elif not not flag_a:", "    p = 2 * p"),
        ("if not flag_a:", "    pass", "else:", "    if flag_a:", f"        {UPDATE}"),
    ],
)
def test_an_outer_branch_decides_a_condition_on_hyperparameters(body: tuple[str, ...]) -> None:
    text = spec(*body, UPDATE, hypers="lr=hyper(0.1, ge=0), flag_a=flag(False)")
    rule = fold_constants(read(text)).rule
    branches = [stmt for stmt in rule if isinstance(stmt, If)]
    assert len(branches) == 1
    assert not [s for s in (*branches[0].then, *branches[0].orelse) if isinstance(s, If)]
