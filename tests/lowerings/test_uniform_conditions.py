"""Test uniform conditions, which have one answer for a whole parameter, in `where` and `if`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from spec_texts import LR, read, spec

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.passes.prepare_rule import add_maximize
from optgen.spec import Spec

OPTIONAL = f"{LR}, opt=hyper(None, optional=True)"
FLAG = f"{LR}, fa=flag(False)"
TUPLE = f"{LR}, bs=hyper((None, 0.5), optional=True)"
MODE = f'{LR}, mode=choice("a", "b", None)'
STATE = 'm=state("exp_avg")'
SCALE_BY_OPT = ("if opt is not None:", "    p = p * opt")
OPTIONAL_VALUES: list[dict[str, Any]] = [{}, {"opt": 0.5}]
TUPLE_VALUES: list[dict[str, Any]] = [{}, {"bs": (0.3, 0.5)}, {"bs": (0.0, 0.5)}]
CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "None": (
        spec(
            "p = p - lr * where(opt is None, p, g)",
            *SCALE_BY_OPT,
            hypers=OPTIONAL,
        ),
        OPTIONAL_VALUES,
    ),
    "no None": (
        spec(
            "p = p - lr * where(opt is not None, p, g)",
            *SCALE_BY_OPT,
            hypers=OPTIONAL,
        ),
        OPTIONAL_VALUES,
    ),
    "None, named": (
        spec(
            "x = opt is None",
            "p = p - lr * where(x, p, g)",
            *SCALE_BY_OPT,
            hypers=OPTIONAL,
        ),
        OPTIONAL_VALUES,
    ),
    "None, a number": (
        spec(
            "x = where(opt is None, lr, 1)",
            "p = p - x * g",
            *SCALE_BY_OPT,
            hypers=OPTIONAL,
        ),
        OPTIONAL_VALUES,
    ),
    "fresh": (
        spec(
            "p = p - lr * where(fresh(m), p, g)",
            "m = m + g",
            "p = p - m",
            states=STATE,
        ),
        [{}],
    ),
    "not fresh": (
        spec(
            "p = p - where(not fresh(m), p, g)",
            "m = m + g",
            "p = p - lr * m",
            states=STATE,
        ),
        [{}],
    ),
    "flag": (
        spec(
            "p = p - lr * where(fa, p, g)",
            hypers=FLAG,
        ),
        [{}, {"fa": True}],
    ),
    "flag and step": (
        spec(
            "p = p - lr * where(fa and t > 1, p, g)",
            hypers=FLAG,
        ),
        [{}, {"fa": True}],
    ),
    "two flags": (
        spec(
            "p = p - lr * where(not (fa or opt), p, g)",
            hypers=f"{OPTIONAL}, fa=flag(False)",
        ),
        [{}, {"fa": True}, {"opt": 1.0}],
    ),
    "a number": (
        spec("p = p - lr * where(not lr, p, g)"),
        [{}, {"lr": 0.0}],
    ),
    "a choice": (
        spec(
            'p = p - lr * where(mode == "a", p, g)',
            hypers=MODE,
        ),
        [{}, {"mode": "b"}, {"mode": None}],
    ),
    "a helper": (
        spec(
            "p = p - lr * f(p, g)",
            before="def f(x, y):\n    return where(2 > 1 and not 1 > 2, x, y)",
        ),
        [{}],
    ),
    "an item, in where": (
        spec(
            "a, b = bs",
            "p = p - b * where(a is None, p, g)",
            "if a is not None:",
            "    p = p - lr * a",
            hypers=TUPLE,
        ),
        TUPLE_VALUES,
    ),
    "an item that may be None": (
        spec(
            "if bs[0]:",
            "    p = p - bs[0] * g",
            "else:",
            "    p = p - bs[1] * lr * g",
            hypers=TUPLE,
        ),
        TUPLE_VALUES,
    ),
    "a number that may be None": (
        spec(
            "a, b = bs",
            "if a:",
            "    p = p - a * g",
            "else:",
            "    p = p - b * lr * g",
            hypers=TUPLE,
        ),
        TUPLE_VALUES,
    ),
    "an expression": (
        spec("if not (lr - 0.1):", "    p = p - 2 * g", "if t % 2:", "    p = p - lr * g"),
        [{}, {"lr": 0.5}],
    ),
}


def random_tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((7,), (2, 3))]


def assert_agreement(text: str, options: dict[str, Any], lowering: str) -> None:
    """Compare three steps of a lowering with the oracle."""
    algorithm = add_maximize(read(text))
    cls: Any = optgen.load(Spec("Made", text, "made.py", 1))
    params = [torch.nn.Parameter(value) for value in random_tensors(0)]
    functional = lowering == "functional"
    optimizer = cls(params, **options, differentiable=functional)
    for param in params if functional else ():
        param.requires_grad_(False)  # a leaf that requires grad cannot be changed in place
    expected: list[Any] = [(value, {}) for value in random_tensors(0)]
    for step in range(1, 4):
        for i, (param, grad) in enumerate(zip(params, random_tensors(step), strict=True)):
            param.grad = grad
            value, state = expected[i]
            group = optimizer.param_groups[0]
            expected[i] = evaluate(algorithm, group, value, grad, state, torch.float64)
        with use_lowering("forloop" if functional else lowering):
            optimizer.step()
    for param, (value, _) in zip(params, expected, strict=True):
        torch.testing.assert_close(param.detach(), value, rtol=1e-12, atol=1e-12)


@pytest.mark.one_case_in(2)
@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "functional", "foreach", "fused_cpu"])
@pytest.mark.parametrize("case", CASES)
def test_cpu_lowerings_agree_with_the_rule(case: str, lowering: str) -> None:
    text, option_sets = CASES[case]
    for options in option_sets:
        assert_agreement(text, options, lowering)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


@inside_interpreter
@pytest.mark.parametrize("case", CASES)
def test_triton_agrees_with_the_rule(case: str) -> None:
    text, option_sets = CASES[case]
    for options in option_sets:
        assert_agreement(text, options, "fused_triton")
