"""Test that the reader keeps the order, names and conditions of a rule, and runs no code."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
import torch
from spec_texts import LR, UPDATE, read, spec

from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.ir.nodes import Call, If, assigns, expressions, walk
from optgen.ir.print_ir import to_text
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec
from optgen.spec.source import module_name


def rule_text(algorithm: Algorithm) -> str:
    """Return the rule as text, without the header."""
    return textwrap.dedent("\n".join(to_text(algorithm).splitlines()[1:]))


def calls(op: str, algorithm: Algorithm) -> list[Call]:
    """Return the calls of an op in a rule."""
    nodes = (node for expr in expressions(algorithm.rule) for node in walk(expr))
    return [node for node in nodes if isinstance(node, Call) and node.op == op]


def run(*body: str, p: float = 2.0, g: float = 3.0, t: int = 1, **more: str) -> float:
    """Return the parameter after one step of a rule on numbers, with default hyperparameters."""
    algorithm = read(spec(*body, **more))
    hypers = {h.name: h.default for h in algorithm.hypers}
    param, grad = torch.tensor(p), torch.tensor(g)
    state = {"step": float(t - 1)} if t > 1 else {}
    return evaluate(algorithm, hypers, param, grad, state)[0].item()


def test_the_author_s_order_is_kept() -> None:
    assert rule_text(read(spec("p = g * lr + (p - (g + 2 * g)) * 1"))) == (
        "p = g * lr + (p - (g + 2 * g)) * 1"
    )


@pytest.mark.parametrize(
    "expression",
    ["p - (g - lr)", "p / (g / lr)", "-(p**2)", "(-p)**2", "p**-lr", "(p**2)**lr", "p % lr", "+p"],
)
def test_operators_bind_as_in_python(expression: str) -> None:
    expected = eval(expression, {"p": 2.0, "g": 3.0, "lr": 0.5})
    body = (f"p = {expression}", "p = p + 0 * (lr * g)")
    assert run(*body, hypers="lr=hyper(0.5)") == pytest.approx(expected, rel=1e-15)


def test_a_comparison_reads_each_side_once() -> None:
    """The middle of a chain is one random number; a helper on the left is inlined once."""
    drawn = calls("random", read(spec("p = p - lr * where(0.2 < random(1, 2) < 0.5, g, 0)")))
    assert len(drawn) == 2
    assert drawn[0].args == drawn[1].args

    helpers = ["def f0(x):\n    return x + 1\n"]
    for depth in range(1, 12):
        body = f"return where(f{depth - 1}(x) > 0, x, 1)"
        helpers.append(f"def f{depth}(x):\n    {body}\n")
    nested = read(spec("p = p - lr * f11(g)", before="\n".join(helpers)))
    assert len(calls("where", nested)) == 11


def test_tuple_assignment_is_simultaneous() -> None:
    assert run("p, g = g, p", "p = p + 10 * g + 0 * lr") == 3 + 10 * 2
    assert run("u, p, g = p, g, p + g", "p = p + 10 * g + 100 * u + 0 * lr") == 3 + 50 + 200


def test_a_tuple_is_unpacked_or_indexed() -> None:
    assert (
        run("a, b = c", "p = a * p + b * c[1] + 0 * g", hypers="c=hyper((5, 7))") == 5 * 2 + 7 * 7
    )


def test_an_argument_of_a_helper_is_computed_once() -> None:
    helper = "def square(x):\n    return x * x"
    text = spec("p = square(sqrt(g)) - lr", before=helper)
    assert rule_text(read(text)) == "x = sqrt(g)\np = x * x - lr"


def test_a_helper_s_names_are_its_own() -> None:
    helper = 'def f(x):\n    """Mixes."""\n    u = x + 1\n    x = 2 * u\n    return x + u'
    body = ("u = 5 * g", "p = f(p) + f(u) + 0 * lr", "p = p + u")
    assert run(*body, before=helper) == (6 + 3) + (32 + 16) + 15


def test_a_helper_may_call_another_and_take_states_and_tuples() -> None:
    helpers = (
        "def a(x):\n    return 2 * x\n\n\ndef f(b, s):\n    c, d = b\n    return a(c) * s + b[1]"
    )
    body = ("m = m + f(betas, g)", "p = m")
    more = {"states": 'm=state("exp_avg")', "hypers": "betas=hyper((5, 7))"}
    assert run(*body, before=helpers, **more) == 2 * 5 * 3 + 7


def test_a_rule_may_read_constants_of_its_file() -> None:
    before = "HALF = 1 / 2\nQUARTER = -HALF**2"
    assert run("p = p * QUARTER + HALF + 0 * lr * g", before=before) == 2 * -0.25 + 0.5


@pytest.mark.parametrize("t", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "condition",
    [
        "1 < t <= 3",
        "t > 1 and t != 3",
        "t == 1 or t == 4",
        "not t > 2",
        "not (t > 2 and t < 5)",
        "t % 2",
        "t % 2 == 0 and lr",
        "big and t > 2",
        "not big",
        "nothing is None",
        "nothing is not None and t > nothing",
        "nothing is None or t > nothing",
        "nothing",
        "lr is None",
        'mode == "sum" and mode is not None',
        'mode != "sum"',
    ],
)
def test_a_condition_means_what_it_means_in_python(condition: str, t: int) -> None:
    hypers = (
        "lr=hyper(0.5), big=flag(True), nothing=hyper(None, optional=True), "
        'mode=choice("sum", "mean", None)'
    )
    read_every_hyper = 'if nothing and big and mode == "mean":', "    p = p - lr * g"
    body = (f"if {condition}:", "    p = p * 10", "else:", "    p = p * 100", *read_every_hyper)
    names = {"t": t, "lr": 0.5, "big": True, "nothing": None, "mode": "sum"}
    assert run(*body, t=t, hypers=hypers) == (20 if eval(condition, names) else 200)


def test_elif_takes_the_first_condition_that_holds() -> None:
    body = ("if t == 1:", "    p = 10 * p", "elif t < 3:", "    p = 20 * p", "else:", "    p = g")
    found = [run(*body, "p = p + 0 * lr", t=t) for t in (1, 2, 3)]
    assert found == [20, 40, 3]


def test_a_name_assigned_in_one_branch_keeps_its_old_value_in_the_other() -> None:
    body = ("u = p", "if t > 1:", "    u = 7 * g", "p = u + 0 * lr")
    assert [run(*body, t=t) for t in (1, 2)] == [2, 21]


def test_only_the_taken_branch_is_evaluated() -> None:
    body = ("if t > 5:", "    r = sqrt(t - 5)", "    p = r * g", "else:", "    p = lr * g")
    assert run(*body, t=1) == pytest.approx(0.3)


def test_a_state_holds_a_copy_of_the_gradient() -> None:
    algorithm = read(spec("b = g", "g = 2 * g", "p = b + g - lr * p", states='b=state("buf")'))
    param, grad = torch.ones(2), torch.full((2,), 3.0)
    new, state = evaluate(algorithm, {"lr": 0.0}, param, grad, {})
    assert state["buf"].tolist() == [3, 3]
    assert new.tolist() == [9, 9]
    assert (param.tolist(), grad.tolist()) == ([1, 1], [3, 3])


def test_quotes_have_one_line_and_no_comments() -> None:
    body = (
        'if mode == "#":  # a hash in quotes',
        "    p = (  # the parameter",
        "        p",
        "        - lr  # times",
        "        * g",
        "    )",
        "else:",
        "    p = p - g  # plain",
    )
    algorithm = read(spec(*body, hypers=f'{LR}, mode=choice("#", "-")'))
    (branch,) = algorithm.rule
    assert isinstance(branch, If)
    assert branch.quote == ('if mode == "#":',)
    assert [a.quote for a in assigns(algorithm.rule)] == [("p = (p - lr * g)",), ("p = p - g",)]


def test_lines_and_columns_of_places_begin_at_one() -> None:
    algorithm = read(spec("u = sqrt(g)", "p = p - lr * u", doc='"""Grüße."""'))
    first, second = assigns(algorithm.rule)
    assert str(first.place) == "made.py:6:5"
    assert str(second.value.place) == "made.py:7:9"


def test_the_caret_is_right_behind_letters_outside_ascii() -> None:
    with pytest.raises(SpecError) as raised:
        read(spec('require(lr > 0, "größer als null"); p = p - lr * x'))
    line, caret = str(raised.value).splitlines()[1:3]
    assert line[caret.index("^")] == "x"


def test_nothing_in_a_spec_file_is_executed(tmp_path: Path) -> None:
    written = tmp_path / "written"
    effect = f"open({str(written)!r}, 'w')"
    for text in (
        spec(before=effect),
        spec(before=f"X = {effect}"),
        spec(hypers=f"lr=hyper({effect})"),
        spec(f"p = {effect}"),
        spec("p = f(p)", before=f"def f(x={effect}):\n    return x"),
        spec(decorator=f"@optimizer(paper={effect})"),
        spec("require(lr > 0, \"{__import__('os')}\")", "p = p - lr * g"),
        spec(before=f"class A:\n    x = {effect}"),
    ):
        path = tmp_path / "rule.py"
        path.write_text(text)
        with pytest.raises(SpecError):
            read_spec(path)
    assert not written.exists()


def test_a_decorated_function_has_the_lines_of_its_file(tmp_path: Path) -> None:
    text = "\n\n" + spec("p = p - lr * oops")
    (tmp_path / "holder_of_a_spec.py").write_text(text)
    sys.path.insert(0, str(tmp_path))
    try:
        import holder_of_a_spec  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    declared = holder_of_a_spec.Made
    assert isinstance(declared, Spec)
    with pytest.raises(SpecError) as raised:
        read_spec(declared)
    place = raised.value.place
    assert Path(place.file) == tmp_path / "holder_of_a_spec.py"
    assert text.split("\n")[place.line - 1] == "    p = p - lr * oops"
    assert "    p = p - lr * oops" in str(raised.value).splitlines()[1]
    with pytest.raises(TypeError, match=r"optgen\.load"):
        declared(1, 2)


def test_the_error_of_an_indented_function_has_its_line_and_column() -> None:
    text = textwrap.indent(spec("u = lr * oops", "p = u").partition("\n\n")[2], "    ")
    with pytest.raises(SpecError) as raised:
        read_spec(Spec("made", text, "cell.py", 10))
    error = raised.value
    assert (error.place.line, error.place.column) == (13, 18)
    line, caret = str(error).splitlines()[1:3]
    assert line[caret.index("^") :].startswith("oops")


def test_the_specs_of_a_file_come_in_its_order(tmp_path: Path) -> None:
    other = spec().partition("\n\n")[2].replace("Made", "Another")
    path = tmp_path / "made.py"
    path.write_text(spec() + "\n\n" + other)
    assert [a.name for a in read_spec(path)] == ["Made", "Another"]


@pytest.mark.parametrize(
    ("name", "module"),
    [("AdamW", "adamw"), ("SparseAdam", "sparse_adam"), ("SGD", "sgd"), ("RMSprop", "rmsprop")],
)
def test_a_module_has_the_name_of_its_class_in_snake_case(name: str, module: str) -> None:
    assert module_name(name) == module


def test_declarations_are_read_with_their_options() -> None:
    algorithm = read(
        spec(
            "s = s + lr",
            "if big:",
            "    m = m + g",
            "p = p - s * where(g > eps[0], g, 0) - eps[1] * lr",
            states='m=state("exp_avg", when="big", eager=True), s=state("mu", shape="scalar")',
            hypers="lr=hyper(0.1, gt=0, le=1), big=flag(True), eps=hyper((0, 1e-3))",
        )
    )
    m, s = algorithm.states
    assert (m.key, m.when, m.eager, m.shape) == ("exp_avg", "big", True, "like")
    assert (s.key, s.shape, s.init) == ("mu", "scalar", 0)
    lr, big, eps = algorithm.hypers
    assert (lr.type, lr.default, lr.bounds.admits(0), lr.bounds.admits(1)) == (
        "number",
        0.1,
        False,
        True,
    )
    assert (big.type, big.default, eps.type, eps.size) == ("flag", True, "tuple", 2)
    assert not lr.bounds.admits(float("nan"))


def test_a_state_may_be_read_under_any_form_of_its_condition() -> None:
    states = 'm=state("exp_avg", when="big"), v=state("exp_avg_sq", when="not big")'
    hypers = "lr=hyper(0.1, ge=0), big=flag(False), c=hyper(0.5)"
    body = (
        "if not big:",
        "    v = v + g**2",
        "else:",
        "    if c > 0 and big:",
        "        m = m + g",
        "        p = p - lr * m",
        "    else:",
        "        p = p - lr * g",
        "if not (big or c > 1):",
        "    p = p - lr * v",
    )

    algorithm = read(spec(*body, states=states, hypers=hypers))

    assert [s.when for s in algorithm.states] == ["big", "not big"]


def test_a_rule_need_not_read_a_state_that_users_read() -> None:
    """Users log a group's state, and compute a forward pass with a copy of the parameter."""
    states = 'k=state("size", shape="group"), low=state("low", init="p", dtype="bfloat16")'
    text = spec('k = norm(g, over="group")', UPDATE, "low = p", states=states)

    assert [state.key for state in read(text).states] == ["size", "low"]
