"""Test the LaTeX of rules: golden texts, valid TeX, brackets, letters and time indices."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from conftest import Golden
from hypothesis import HealthCheck, given, settings
from matplotlib.mathtext import MathTextParser
from spec_texts import read, spec
from strategies import specs

from optgen.ir.algorithm import Algorithm
from optgen.passes.latex import Symbols, read_letter, to_latex
from optgen.passes.prepare_rule import derive
from optgen.spec.declare import Spec
from optgen.spec.read_spec import read_base, read_spec

SPECS = Path(__file__).parent.parent.parent / "specs"
NAMES = [
    "sgd",
    "adam",
    "adamw",
    "nadam",
    "radam",
    "rmsprop",
    "adamax",
    "adadelta",
    "adagrad",
    "asgd",
    "rprop",
]

MATRIX_OPS = {
    "orthogonalize(g, k, 5, 1e-7)": r"_{5}(g_t;\, k, 10^{-7})",
    "orthogonalize(g, k, 5, 1e-7, divisor='spectral', dtype='float16')": (
        r"_{5}(g_t;\, k, 10^{-7}, \text{divisor} = \text{spectral}, \text{dtype} = \text{float16})"
    ),
    "orthogonalize(g, k, 5, divisor='none', dtype='parameter')": (
        r"_{5}(g_t;\, k, \text{divisor} = \text{none}, \text{dtype} = \text{parameter})"
    ),
}
"""Matrix ops, and their LaTeX."""

SPEC = '''from optgen.spec import *

@optimizer(paper="")
def Example(
    p, g, t, /,
    m=state("exp_avg"),
    v_max=state("largest", when="amsgrad"),
    *,
    lr=hyper(0.1),
    betas=hyper((0.5, 0.75)),
    mu=hyper(0.5),
    momentum=hyper(0.5, optional=True),
    my_flag=flag(False),
    amsgrad=flag(False),
    kind=choice("plain", None),
    on=fixed(True),
):
    """An example."""
'''
# The end of every test's rule. It uses each state and hyperparameter, because the language refuses
# unused ones.
END = """
    if momentum and my_flag and kind == "plain" and on:
        m = m + g * mu * betas[0] * betas[1] * lr * t
    if amsgrad:
        v_max = maximum(v_max, g)
    p = p - m
"""


def algorithm_of(name: str) -> Algorithm:
    """Return an algorithm of the catalogue; a derived one gets the rule of its base."""
    (algorithm,) = read_spec(SPECS / f"{name}.py")
    base = read_base(algorithm, SPECS)
    return algorithm if base is None else derive(algorithm, base)


def latex_lines(body: str, end: str = END) -> list[str]:
    """Return the LaTeX lines of a rule that starts with `body`, without those of `maximize`."""
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    (algorithm,) = read_spec(Spec("Example", SPEC + indented + end, "example.py", 1))
    first, last = r"\quad g_t \leftarrow -g_t \\", r"\end{aligned}"
    text = to_latex(algorithm)
    after = text[text.index(first) + len(first) : text.index(last)]
    return [line.strip().removeprefix("&").removesuffix(r" \\") for line in after.splitlines()[1:]]


def latex_of(expression: str) -> str:
    """Return the LaTeX of one expression."""
    return latex_lines(f"x = {expression}\ng = g * x")[0].partition(r"\leftarrow ")[2]


def assert_is_tex(text: str) -> None:
    """Check that Matplotlib reads every line as TeX, after replacing commands that it lacks."""
    first, *inner, last = text.splitlines()
    assert (first, last) == (r"\begin{aligned}", r"\end{aligned}")
    for i, line in enumerate(inner):
        assert line.startswith("    &")
        assert line.endswith(r" \\") == (i < len(inner) - 1)
        plain = line.strip().removeprefix("&").removesuffix(r"\\").strip()
        parse(re.sub(r"\\(le|ge)\b", r"\\\1q", re.sub(r"\\text(bf|it)", r"\\text", plain)))


@functools.cache
def parse(line: str) -> None:
    MathTextParser("path").parse(f"${line}$")


@pytest.mark.parametrize("name", NAMES)
def test_latex_of_the_catalogue_is_as_recorded(name: str, golden: Golden) -> None:
    text = to_latex(algorithm_of(name))

    assert_is_tex(text)
    golden.check(text)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=specs())
def test_the_latex_of_any_rule_is_valid_tex(tmp_path: Path, text: str) -> None:
    path = tmp_path / "random.py"
    path.write_text(text)

    assert_is_tex(to_latex(read_spec(path)[0]))


@pytest.mark.parametrize(
    ("expression", "latex"),
    [
        ("a - (b - c)", "a - (b - c)"),
        ("a - b - c", "a - b - c"),
        ("a * (b + c)", "a (b + c)"),
        ("a * b / c", r"\frac{a b}{c}"),
        ("a * (b / c)", r"a \frac{b}{c}"),
        ("a / b * c", r"\frac{a}{b} c"),
        ("a / (b / c)", r"\frac{a}{\frac{b}{c}}"),
        ("-(a + b)", "-(a + b)"),
        ("a * -b", "a (-b)"),
        ("a + -b", "a + (-b)"),
        ("-a**2", "-a^2"),
        ("(-a)**2", "(-a)^2"),
        ("(a / b)**2", r"\left(\frac{a}{b}\right)^2"),
        ("(a**b)**c", "(a^b)^c"),
        ("a**b**c", "a^{b^c}"),
        ("a**10", "a^{10}"),
        ("a**-1", "a^{-1}"),
        ("2 * 3 * a", r"2 \cdot 3 a"),
        ("a * 0.5**b", r"a \cdot 0.5^b"),
        ("1e-8 * a", "10^{-8} a"),
        ("a + 2.5e-9", r"a + 2.5 \cdot 10^{-9}"),
        ("a * -1e-9", "a (-10^{-9})"),
        ("sqrt(a + b) * c", r"\sqrt{a + b} c"),
        ("exp(a)**2", "(e^a)^2"),
        ("log(a + b) * c", r"(\log (a + b)) c"),
        ("log(a * b)", r"\log (a b)"),
        ("abs(a - b)", r"\left|a - b\right|"),
        ("maximum(a + b, c) * a", r"\max(a + b, c) a"),
        ("where(a < b, a, c)", r"(a < b \;?\; a : c)"),
        ("a % b", r"a \bmod b"),
        ("tanh(a + b) * c", r"\tanh(a + b) c"),
        ("a * sin(b)**2 - cos(c)", r"a \sin(b)^2 - \cos(c)"),
        ("atan2(-a, b) * c", r"\operatorname{atan2}(-a, b) c"),
        ("floor(a + b) * ceil(c)", r"\left\lfloor a + b \right\rfloor \left\lceil c \right\rceil"),
        ("round(a) / b", r"\frac{\operatorname{round}(a)}{b}"),
    ],
)
def test_brackets_keep_the_meaning_and_none_is_unnecessary(expression: str, latex: str) -> None:
    names = "a, b, c = 0.25 * lr, 0.5 * lr, 0.75 * lr\n"
    found = latex_lines(f"{names}x = {expression}\ng = g * x * a * b * c")[3]

    assert found == rf"x \leftarrow {latex}"


@pytest.mark.parametrize(
    ("condition", "latex"),
    [
        ("momentum", r"\text{momentum} \ne 0"),
        ("not momentum", r"\text{momentum} = 0"),
        ("momentum is None", r"\text{momentum} = \varnothing"),
        ("momentum is not None", r"\text{momentum} \ne \varnothing"),
        ("my_flag", r"\textit{my\_flag}"),
        ("not my_flag", r"\neg \textit{my\_flag}"),
        ("fresh(m)", r"m \text{ is new}"),
        ("not fresh(m)", r"m \text{ is not new}"),
        ("t > 1 and lr <= 1 or my_flag", r"t > 1 \wedge \gamma \le 1 \vee \textit{my\_flag}"),
        ("t > 1 and (lr <= 1 or my_flag)", r"t > 1 \wedge (\gamma \le 1 \vee \textit{my\_flag})"),
        ('kind == "plain"', r"\textit{kind} = \text{plain}"),
        ('kind != "plain"', r"\textit{kind} \ne \text{plain}"),
    ],
)
def test_a_condition_is_written_in_logic(condition: str, latex: str) -> None:
    assert latex_lines(f"if {condition}:\n    g = 2 * g")[0] == rf"\textbf{{if }} {latex}:"


@pytest.mark.parametrize(
    ("name", "latex"),
    [
        ("m", "m_t"),
        ("beta1", r"\beta_{1,t}"),
        ("g2_hat", r"\hat{g}_{2,t}"),
        ("m_hat", r"\hat{m}_t"),
        ("v_bar", r"\bar{v}_t"),
        ("rho_inf", r"\rho_{\infty,t}"),
        ("v_max", r"v^{\max}_t"),
        ("mu_next", r"\mu_{t+1}"),
        ("mu_product", r"\mu_{\text{product},t}"),
        ("gamma_3_factor", r"\gamma_{3,\text{factor},t}"),
        ("beta_2_hat", r"\hat{\beta}_{2,t}"),
        ("beta3_warmup", r"\beta_{3,\text{warmup},t}"),
        ("ell", r"\ell_t"),
        ("rms", r"\text{rms}_t"),
        ("step_size", r"\text{step size}_t"),
        ("alpha_t", r"\alpha_t"),
        ("beta3_t", r"\beta_{3,t}"),
        ("m_hat_t", r"\hat{m}_t"),
    ],
)
def test_a_name_becomes_a_letter(name: str, latex: str) -> None:
    assert read_letter(name).at("t") == latex


def test_a_name_is_spelled_out_if_another_name_has_its_letter() -> None:
    """The author's mu has the letter, so the momentum, which papers call mu, is spelled out."""
    found = latex_lines("if momentum is not None:\n    g = mu * momentum * g")

    assert any(r"\leftarrow \mu \text{momentum} g_t" in line for line in found)


def test_the_parameter_is_p_if_the_author_has_a_theta() -> None:
    found = latex_lines("theta = 2 * p\ng = g + theta")

    assert found[:2] == [r"\theta_t \leftarrow 2 p_{t-1}", r"g_t \leftarrow g_t + \theta_t"]


def test_unpacking_a_tuple_prints_no_line() -> None:
    """The items keep the author's names. An unnamed item is the tuple's letter with a number."""
    assert latex_of("betas[0] * betas[1]") == r"\beta_1 \beta_2"
    assert latex_lines("fast, _ = betas\ng = fast * g")[0] == r"g_t \leftarrow \text{fast} g_t"


def test_a_state_has_the_index_of_the_last_step_until_it_is_written() -> None:
    """A state is read as the last step left it, until this step writes it."""
    found = latex_lines("m = m + g\nx = 2 * m\ny = 2 * lr\nz = y * t\np = p + x * z")

    assert found[:5] == [
        r"m_t \leftarrow m_{t-1} + g_t",
        r"x_t \leftarrow 2 m_t",
        r"y \leftarrow 2 \gamma",
        r"z_t \leftarrow y t",
        r"\theta_t \leftarrow \theta_{t-1} + x_t z_t",
    ]


def test_a_name_that_one_arm_writes_keeps_its_old_value_in_the_other() -> None:
    found = latex_lines("if my_flag:\n    m = m + g\nx = 2 * m\ng = g * x")

    assert found[:4] == [
        r"m_t \leftarrow m_{t-1}",
        r"\textbf{if } \textit{my\_flag}:",
        r"\quad m_t \leftarrow m_{t-1} + g_t",
        r"x_t \leftarrow 2 m_t",
    ]


def test_nested_branches_keep_the_old_value_by_one_line() -> None:
    found = latex_lines("if my_flag:\n    if t > 1:\n        m = m + g\ng = g * m")

    assert found[:5] == [
        r"m_t \leftarrow m_{t-1}",
        r"\textbf{if } \textit{my\_flag}:",
        r"\quad \textbf{if } t > 1:",
        r"\quad \quad m_t \leftarrow m_{t-1} + g_t",
        r"g_t \leftarrow g_t m_t",
    ]


def test_a_variable_that_depends_on_t_in_one_arm_has_a_time_index() -> None:
    found = latex_lines("if my_flag:\n    x = 1 / t\nelse:\n    x = 2\ng = x * g")

    assert found[1:5] == [
        r"\quad x_t \leftarrow \frac{1}{t}",
        r"\textbf{else}:",
        r"\quad x_t \leftarrow 2",
        r"g_t \leftarrow x_t g_t",
    ]


def test_a_name_that_both_arms_write_prints_no_old_value() -> None:
    body = "if t > 2:\n    m = g\nelif t > 1:\n    m = m + g\nelse:\n    m = 2 * m\ng = m"

    assert latex_lines(body)[:7] == [
        r"\textbf{if } t > 2:",
        r"\quad m_t \leftarrow g_t",
        r"\textbf{else if } t > 1:",
        r"\quad m_t \leftarrow m_{t-1} + g_t",
        r"\textbf{else}:",
        r"\quad m_t \leftarrow 2 m_{t-1}",
        r"g_t \leftarrow m_t",
    ]


def test_an_empty_arm_negates_the_condition() -> None:
    found = latex_lines("if my_flag:\n    pass\nelse:\n    g = 2 * g")

    assert found[:2] == [r"\textbf{if } \neg \textit{my\_flag}:", r"\quad g_t \leftarrow 2 g_t"]


@pytest.mark.parametrize(
    ("condition", "factor"),
    [
        ("on", "3"),
        ("not on", "2"),
        ("on or my_flag", "3"),
        ("not on and my_flag", "2"),
        ("on and not on", "2"),
    ],
)
def test_fixed_flags_leave_one_arm(condition: str, factor: str) -> None:
    found = latex_lines(f"if {condition}:\n    g = 3 * g\nelse:\n    g = 2 * g")

    assert found[0] == rf"g_t \leftarrow {factor} g_t"


def test_a_fixed_flag_that_does_not_decide_leaves_the_branch() -> None:
    found = latex_lines("if on and my_flag:\n    g = 3 * g")

    assert found[0].startswith(r"\textbf{if }")


def test_a_name_that_an_if_and_an_elif_write_keeps_its_old_value_elsewhere() -> None:
    found = latex_lines("if my_flag:\n    m = m + g\nelif lr > 1:\n    m = 2 * m\np = p - m")

    assert found[0] == r"m_t \leftarrow m_{t-1}"
    assert r"- m_t" in found[-1]


def test_a_simultaneous_assignment_names_the_temporary_value() -> None:
    """The label `next` marks the new value of this step, not a value of the next step."""
    found = latex_lines("p, m = m, p")

    assert found[:3] == [
        r"\theta^{\text{next}}_t \leftarrow m_{t-1}",
        r"m_t \leftarrow \theta_{t-1}",
        r"\theta_t \leftarrow \theta^{\text{next}}_t",
    ]


def test_a_reduction_over_parameters_stands_where_it_is_read() -> None:
    found = latex_lines('x = sum(g, over="all") / mean(g, over="group")\np = p - x * g')

    total, count = (
        r"\sum_{\text{group}} \operatorname{sum}(g_t)",
        r"\sum_{\text{group}} \left|\theta\right|",
    )
    assert found[0] == (
        r"x_t \leftarrow \frac{\sum_{\text{all}} \operatorname{sum}(g_t)}"
        rf"{{\frac{{{total}}}{{{count}}}}}"
    )


HYPERS = "lr=hyper(0.1), alpha=hyper(5.0), beta3=hyper(0.99)"


def lines(*body: str, states: str = "") -> list[str]:
    text = to_latex(read(spec(*body, states=states, hypers=HYPERS)))
    return [line.strip(" &\\") for line in text.splitlines()[4:-1]]


def test_a_scheduled_hyperparameter_has_a_letter_with_a_time_index() -> None:
    found = lines(
        "alpha_t = minimum(alpha, alpha * t)",
        "beta3_t = minimum(beta3, t * beta3)",
        "lr_t = lr / t",
        "p = p - lr_t * alpha_t * g / (1 - beta3_t)",
    )
    assert found[0].startswith(r"alpha_t \leftarrow \min(\alpha, ")
    assert found[1].startswith(r"beta_{3,t} \leftarrow \min(\beta_3, t \beta_3)")
    assert found[2].startswith(r"gamma_t \leftarrow ")
    assert r"\alpha_t" in found[3]
    assert r"1 - \beta_{3,t}" in found[3]


@pytest.mark.parametrize("order", [("m", "m_t"), ("m_t", "m")])
def test_no_two_names_look_alike(order: tuple[str, str]) -> None:
    first, second = order
    algorithm = read(
        spec(
            f"{first} = 2 * g",
            f"{second} = 3 * g",
            "p = p - lr * alpha * beta3 * m * m_t",
            hypers=HYPERS,
        )
    )
    symbols = Symbols(algorithm)
    assert symbols.at("m", "t") != symbols.at("m_t", "t")


@pytest.mark.parametrize("op", MATRIX_OPS)
def test_options_of_a_matrix_op_that_are_not_their_defaults_are_typeset(op: str) -> None:
    hypers = "lr=hyper(0.1), k=hyper((1.5, -0.5, 0.0))"
    text = to_latex(read(spec("require(ndim(p) == 2, '')", f"p = p - lr * {op}", hypers=hypers)))
    assert r"\gamma \operatorname{NewtonSchulz}" + MATRIX_OPS[op] + "\n" in text
    assert text.count(r"\leftarrow") == 3  # no line for the machine epsilon of the dtype
