"""Test the reader's errors on reductions, rows and columns, and facts of the parameter."""

from __future__ import annotations

import pytest
from conftest import Golden
from spec_texts import LR, UPDATE, read, spec

from optgen.spec.errors import SpecError

R = 'r=state("row_var", shape="row", when="factored")'
MATRIX = 'require(ndim(p) == 2, "no matrix: {shape}")'
NEWTON_SCHULZ = f"{LR}, abc=hyper((3.4, -4.8, 2.0)), k=hyper(5), eps=hyper(1e-7)"

CASES = {
    "a sum of a number": spec("p = p - lr * g * sum(lr)"),
    "a mean of a reduction": spec("p = p - lr * g * mean(rms(g))"),
    "rows of a number": spec(MATRIX, "p = p - lr * g * row_mean(lr)"),
    "rows of rows": spec(MATRIX, "p = p - lr * row_mean(row_mean(g)) * g"),
    "a sum of answers": spec("p = p - lr * g * sum(g > 0)"),
    "largest of rows of rows": spec(MATRIX, "p = p - lr * row_max_abs(row_mean(g)) * g"),
    "largest of rows of any parameter": spec("p = p - lr * row_max_abs(g) * g"),
    "largest of columns of vectors": spec(
        "if factored(p):", f"    {UPDATE}", "else:", "    p = p - lr * col_max_abs(g)"
    ),
    "largest of rows, with its sign": spec(MATRIX, "p = p - lr * row_max(g) * g"),
    "largest of rows over a group": spec(MATRIX, 'p = p - lr * row_max_abs(g, over="group") * g'),
    "rows of any parameter": spec("p = p - lr * row_mean(g) * g"),
    "columns of parameters that are not factored": spec(
        "if factored(p):", f"    {UPDATE}", "else:", "    p = p - lr * col_sum(g)"
    ),
    "size of any parameter": spec("p = p - lr * g / rows(p)"),
    "a requirement that admits vectors": spec(
        'require(ndim(p) <= 2, "{shape}")', "p = p - lr * row_mean(g) * g"
    ),
    "a property of the gradient": spec("p = p - lr * g / numel(g)"),
    "a property of nothing": spec("p = p - lr * g / numel()"),
    "an if on a reduction": spec("if rms(g) > 1:", f"    {UPDATE}"),
    "an if on a variable that holds a reduction": spec("u = rms(g)", "if u:", f"    {UPDATE}"),
    "an if on a scalar that a reduction feeds": spec(
        "s = s + rms(g)",
        "if s > 1:",
        f"    {UPDATE}",
        states='s=state("mu", shape="scalar")',
    ),
    "an if before a reduction feeds the scalar": spec(
        "if s > 1:",
        f"    {UPDATE}",
        "s = s + rms(g)",
        states='s=state("mu", shape="scalar")',
    ),
    "torch's dtype of a scalar that a reduction feeds": spec(
        "s = s + rms(g)",
        "p = p - lr * s * g",
        states='s=state("mu", shape="scalar", dtype="torch")',
    ),
    "a row becomes a tensor": spec(MATRIX, "u = row_mean(g)", "u = u * g", "p = p - lr * u"),
    "a row state becomes a column": spec(
        "if factored(p):", "    r = r + col_mean(g)", "    p = p - lr * r * g", states=R
    ),
    "a row state of any parameter": spec(
        "p = p - lr * r * g", states='r=state("row_var", shape="row")'
    ),
    "a row state under a condition that always holds": spec(
        MATRIX, "r = r + row_mean(g)", "p = p - lr * r * g", states=R
    ),
    "a row state outside its condition": spec("r = 2 * r", "p = p - lr * r * g", states=R),
    "a column from p": spec(states='c=state("c", shape="col", init="p", when="factored")'),
    "an unknown shape": spec(states='m=state("exp_avg", shape="matrix")'),
    "an unknown fact": spec(states='m=state("exp_avg", when="not factord")'),
    "a hyperparameter called like a fact": spec(hypers=f"{LR}, factored=flag(True)"),
    "a variable named like a word that is called": spec("rms = rms(g)", "p = p - lr * g / rms"),
    "a helper named like a word that is called": spec(
        "p = p - lr * norm(g) * g", before="def norm(x):\n    return x"
    ),
    "orthogonalize of any parameter": spec(
        "p = p - orthogonalize(g, abc, k, eps)", hypers=NEWTON_SCHULZ
    ),
    "orthogonalize by an unknown option": spec(
        MATRIX, "p = p - orthogonalize(g, abc, k, eps, scale=2)", hypers=NEWTON_SCHULZ
    ),
    "orthogonalize by an unknown divisor": spec(
        MATRIX, 'p = p - orthogonalize(g, abc, k, eps, divisor="trace")', hypers=NEWTON_SCHULZ
    ),
    "orthogonalize in a dtype that is chosen": spec(
        MATRIX,
        "p = p - orthogonalize(g, abc, k, eps, dtype=low)",
        hypers=f'{NEWTON_SCHULZ}, low=choice("float16", "float32")',
    ),
    "orthogonalize by nothing, but at least by eps": spec(
        MATRIX, 'p = p - orthogonalize(g, abc, k, eps, divisor="none")', hypers=NEWTON_SCHULZ
    ),
    "orthogonalize without eps": spec(
        MATRIX, "p = p - orthogonalize(g, abc, k)", hypers=NEWTON_SCHULZ
    ),
    "orthogonalize of rows": spec(
        MATRIX, "p = p - lr * orthogonalize(row_sum(g), abc, k, eps) * g", hypers=NEWTON_SCHULZ
    ),
    "orthogonalize by a number": spec(
        MATRIX, "p = p - lr * orthogonalize(g, lr, k, eps)", hypers=NEWTON_SCHULZ
    ),
    "orthogonalize by a norm": spec(
        MATRIX, "p = p - lr * orthogonalize(g, abc, k, norm(g))", hypers=NEWTON_SCHULZ
    ),
    "require of a hyperparameter and of p": spec('require(lr > ndim(p), "no")'),
    "require of a size": spec('require(ndim(p) == 2, "no")', 'require(numel(p) > rows(p), "no")'),
    "require of an unknown field": spec('require(ndim(p) == 2, "{size}")'),
    "an optional tuple without None": spec(hypers=f"{LR}, eps=hyper((0, 1), optional=True)"),
    "a comparison of a variable with None": spec("u = 2 * lr", "if u is None:", f"    {UPDATE}"),
    "None of a reassigned item of a tuple": spec(
        "a, b = eps",
        "a = 2 * b",
        "if a is None:",
        f"    {UPDATE}",
        hypers=f"{LR}, eps=hyper((None, 1), optional=True)",
    ),
    "None of a whole tuple": spec(
        "if eps is None:", f"    {UPDATE}", hypers=f"{LR}, eps=hyper((None, 1), optional=True)"
    ),
    "a field of the error of a choice": spec(hypers=f'{LR}, c=choice("a", None, error="{{c}}")'),
}


@pytest.mark.parametrize("case", CASES)
def test_error(case: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        read(CASES[case])
    assert raised.value.hint
    golden.check(str(raised.value))


@pytest.mark.parametrize(
    "body",
    [
        ("if factored(p):", "    g = row_mean(g) * g", UPDATE),
        ("if not factored(p):", "    g = 2 * g", "else:", "    g = g - col_mean(g)", UPDATE),
        ("if factored(p) and t > 1:", "    g = g / rows(p)", UPDATE),
        ('require(factored(p), "{shape}")', "p = p - lr * row_mean(g) * g"),
        ('require(ndim(p) > 1 and ndim(p) < 4, "{shape}")', "p = p - lr * g / cols(p)"),
        ("if t > 3:", "    g = g / rms(g)", UPDATE),
        ("norm = 2 * g", "rows = norm + p", "p = p - lr * rows"),
        ("floor = 2 * g", "sin = floor + p", "p = p - lr * sin"),
        ("p = p - lr * where(rms(g) > 1, g / rms(g), g)",),
    ],
)
def test_a_valid_rule_is_read(body: tuple[str, ...]) -> None:
    read(spec(*body))


def test_helpers_may_read_properties_of_the_parameter() -> None:
    helper = "def clipped(u, x):\n    return u / maximum(1, rms(u) * numel(x))"
    read(spec("p = p - lr * clipped(g, p)", before=helper))


def test_words_that_are_not_called_need_no_import() -> None:
    text = spec("norm = 2 * g", "p = p - lr * norm")
    read(text.replace("import *", "import hyper, optimizer"))


@pytest.mark.parametrize(
    ("body", "case"),
    [
        (("if factored(p):", "    p = p - lr * g"), "not factored"),
        (("if not factored(p):", "    p = p - lr * g"), "factored"),
        (("if factored(p) and lr > 0:", "    p = p - lr * g"), "not factored"),
        (("if factored(p):", "    p = p - lr * g", "else:", "    x = g", "    _ = x"), "not fact"),
    ],
)
def test_a_rule_that_does_nothing_for_some_parameters_is_refused(
    body: tuple[str, ...], case: str
) -> None:
    with pytest.raises(SpecError, match=f"nothing for parameters that are {case}") as caught:
        read(spec(*body))
    assert "let `require` refuse" in caught.value.hint
    other_case = "if lr:" if "and" in body[0] else "else:"
    read(spec(*body[:2], other_case, "    p = p + g"))


def test_a_condition_that_require_decides_is_refused() -> None:
    require = 'require(ndim(p) == 2, "matrices")'
    read(spec(require, "p = p - lr * g"))
    read(spec("if factored(p) or lr > 0:", "    p = p - lr * g"))
    with pytest.raises(SpecError, match="`require` excludes parameters") as caught:
        read(spec(require, "if factored(p):", "    p = p - lr * g"))
    assert caught.value.hint == "leave the if out: its condition has one answer"
