"""Small rules, each for one feature of the Python lowerings, and functions that print them."""

from __future__ import annotations

import re
import textwrap

from optgen import emit
from optgen.ir.algorithm import Algorithm
from optgen.lowerings.lowering import Lowering
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

STATES = {"m": 'state("exp_avg")', "v": 'state("exp_avg_sq")', "s": 'state("n", shape="scalar")'}
HYPERS = {
    "lr": "hyper(0.1, ge=0)",
    "beta": "hyper(0.9, ge=0, lt=1)",
    "eps": "hyper(1e-8, ge=0)",
    "c": "hyper(0.5)",
    "flag_a": "flag(False)",
    "flag_b": "flag(False)",
}

RULES = {
    "blend": "m = beta * m + (1 - beta) * g; p = p - lr * m",
    "blend with swapped operands": "m = (1 - beta) * g + m * beta; p = p - lr * m",
    "a blend whose weight is a product": """
        m = (1 - beta * c * lr * eps) * m + beta * c * lr * eps * g
        p = p - lr * m
    """,
    "weights whose sum is not 1": "m = beta * m + 0.1 * g; p = p - lr * m",
    "product": "v = beta * v + (1 - beta) * g**2; p = p - lr * g * v",
    "quotient": "v = v + g**2; p = p - lr * g / (sqrt(v) + eps)",
    "two terms over one divisor": "m = m + g; p = p - (lr * g + c * m) / (abs(g) + eps)",
    "numbers in a sum": "m = c + g - 2; p = p - lr * m",
    "a state is a copy": "m = g; p = p - lr * m",
    "an alias that is overwritten": "g = m; m = beta * m + abs(g) * g; p = p - lr * g",
    "old and new value": "x = p; p = p - lr * g; m = m + p - x",
    "swap": "m, v = v, m; p = p - lr * (m + 2 * v) * g",
    "words without a foreach function": "m = where(g > c, g, m % 2); p = p - lr * sign(m)",
    "a common subexpression": "m = sqrt(g**2 + eps) * g + sqrt(g**2 + eps); p = p - lr * m",
    "branches": """
        if flag_a and t > 2:
            m = beta * m + g
        elif not flag_b:
            m = g
        p = p - lr * m
    """,
    "a state that only the else branch changes": """
        if flag_a or flag_b:
            x = c * 2
        else:
            m = g
            x = c
        p = p - x * m
    """,
    "scalar state": "s = s * beta + 1; r = sqrt(s / t); p = p - lr * r * g",
    "a square root in one branch": """
        if t > 5:
            p = p - lr * sqrt(t - 5) * g
        else:
            p = p - lr * g
    """,
}


def spec_text(rule: str) -> str:
    """Return the text of a spec that declares only the names that the rule uses."""
    if ";" in rule:
        rule = "\n".join(rule.split("; "))
    body = textwrap.indent(textwrap.dedent(rule).strip(), "    ")

    def declarations(by_name: dict[str, str]) -> list[str]:
        return [f"    {n}={d}," for n, d in by_name.items() if re.search(rf"\b{n}\b", body)]

    step_count = "t, " if re.search(r"\bt\b", body) else ""
    lines = [
        "from optgen.spec import *",
        '@optimizer(paper="https://example.org")',
        f"def Small(p, g, {step_count}/,",
        *declarations(STATES),
        "    *,",
        *declarations(HYPERS),
        "):",
        '    """One thing."""',
        body,
    ]
    return "\n".join([*lines, ""])


def read(rule: str) -> Algorithm:
    """Return the algorithm of a rule's text."""
    (algorithm,) = read_spec(Spec("Small", spec_text(rule), "<small>", 1))
    return algorithm


def function_body(rule: str, lowering: Lowering, name: str) -> str:
    """Return the body of a function as the lowering prints it, without its docstring."""
    text = emit.render(read(rule), lowering, emit.require_ruff())
    (body,) = re.findall(rf'^def {name}\(.*?"""\n(.*?)(?=^\S|\Z)', text, re.M | re.S)
    return textwrap.dedent(body)
