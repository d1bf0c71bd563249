"""Test every elementwise op in every lowering against its definition in ops.py.

Several ops share a spec, which has a state for each use of an op. A use is on tensors, on a tensor
and a scalar, or in the scalar program. `p` and `g` run through all pairs of special values.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Any

import pytest
import torch
from parity.cases import LOWERINGS
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.ir.ops import ELEMENTWISE_OPS
from optgen.passes.prepare_rule import add_maximize
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

USES: dict[str, tuple[str, ...]] = {
    "+": ("p + g", "p + c", "c + g", "g * (c + d)"),
    "-": ("p - g", "p - c", "c - g", "g * (c - d)"),
    "*": ("p * g", "g * c", "d * g", "g * (c * d)"),
    "/": ("p / g", "g / d", "c / g", "g * (c / d)"),
    "**": ("g**2", "g**3", "g**0.5", "g**-1", "g**-2", "p**g", "g**c", "d**g", "g * d**c"),
    "%": ("p % g", "g % d", "c % g", "g * (c % d)"),
    "neg": ("-g", "g * -c"),
    "<": ("where(p < g, 1, p)", "where(c < g, 1, p)", "where(c < d, p, g)"),
    "<=": ("where(p <= g, 1, p)", "where(c <= g, 1, p)", "where(c <= d, p, g)"),
    ">": ("where(p > g, 1, p)", "where(c > g, 1, p)", "where(c > d, p, g)"),
    ">=": ("where(p >= g, 1, p)", "where(c >= g, 1, p)", "where(c >= d, p, g)"),
    "==": ("where(p == g, 1, p)", "where(c == g, 1, p)", "where(c == d, p, g)"),
    "!=": ("where(p != g, 1, p)", "where(c != g, 1, p)", "where(c != d, p, g)"),
    "and": ("where(p < g and g < c, p, g)", "where(c < d and p < 1, p, g)"),
    "or": ("where(p < g or g < c, p, g)", "where(p < 1 or c < d, p, g)"),
    "not": ("where(not p < g, p, g)", "where(not c < d, p, g)"),
    "sqrt": ("sqrt(g)", "g * sqrt(c)"),
    "exp": ("exp(g)", "g * exp(c)"),
    "log": ("log(g)", "g * log(c)"),
    "tanh": ("tanh(g)", "g * tanh(c)"),
    "sin": ("sin(g)", "g * sin(c)"),
    "cos": ("cos(g)", "g * cos(c)"),
    "atan2": ("atan2(p, g)", "atan2(g, c)", "atan2(c, g)", "g * atan2(c, d)"),
    "floor": ("floor(g)", "g * floor(c)"),
    "ceil": ("ceil(g)", "g * ceil(c)"),
    "round": ("round(g)", "g * round(c)", "round(p * 0.5)"),
    "rounded": ("rounded(g)", "rounded(p + g)"),
    "rounded_down": ("rounded_down(g)",),
    "rounded_up": ("rounded_up(g)",),
    "rounded_at_random": (
        "rounded_at_random(g, 0.25)",
        "rounded_at_random(g, abs(p))",
        "rounded_at_random(g, c)",
        "rounded_at_random(g, p)",
    ),
    "abs": ("abs(g)", "g * abs(c)"),
    "sign": ("sign(g)", "g * sign(c)"),
    "maximum": ("maximum(p, g)", "maximum(g, c)", "maximum(c, g)", "g * maximum(c, d)"),
    "minimum": ("minimum(p, g)", "minimum(g, c)", "minimum(c, g)", "g * minimum(c, d)"),
    "where": (
        "where(g > 0, p, g)",
        "where(g > 0, c, g)",
        "where(g > 0, c, d)",
        "where(c > 0, p, g)",
    ),
    "clamp": ("clamp(g, -1, 2)", "clamp(g, c, d)", "clamp(c, p, 2)", "g * clamp(c, -1, d)"),
    "lerp": ("lerp(p, g, d)", "lerp(p, c, d)", "lerp(p, g, p)", "g * lerp(c, d, 0.25)"),
    "truth": ("where(g > 0, p, g) if c else g",),
    "item": ("pair[0] * p + pair[1] * g",),
    "is_none": ("p if maybe is None else g * maybe",),
    "copy": ("p",),
    "fresh": ("p if fresh(SELF) else g + SELF",),
}
HEAD = """from optgen.spec import *

@optimizer(paper="https://example.org")
def Uses(
    p, g, /,"""
HYPERS = {
    "c": "hyper(0.75)",
    "d": "hyper(2.0)",
    "pair": "hyper((0.5, 0.25))",
    "maybe": "hyper(None, optional=True)",
}
SPECIAL_VALUES = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0)
EXTREME_VALUES = (1e-300, -1e300)
VALUES_OF_C_AND_D = ((0.75, 2.0), (-1.5, 0.5), (2.0, 0.75), (0.0, 1.0))
OPS_WITH_ANY_SIGN_OF_ZERO = {"%", "maximum", "minimum", "clamp", "lerp"}
"""Ops for which torch's own implementations do not agree on the sign of a zero."""
OPS_WITHOUT_EXTREMES = {"%", "lerp"}
"""Ops that are not tested on EXTREME_VALUES, where torch's functions differ in every digit."""
OPS_IN_OTHER_FORMS = {"lerp"}
"""Ops that lowerings may compute by another formula.

If the expected result is infinite or NaN, a lowering may return either.
"""
MAX_STATES = 14
"""The C++ lowering takes up to 16 streams. Two of them are the parameter and the gradient."""


def statements(state: str, use: str) -> list[str]:
    """Return one use as the rule's text: an expression, or an `if` with two arms."""
    value, _, rest = use.partition(" if ")
    if not rest:
        return [f"    {state} = {use}"]
    condition, else_value = rest.split(" else ")
    return [
        f"    if {condition}:",
        f"        {state} = {value}",
        "    else:",
        f"        {state} = {else_value}",
    ]


def uses_by_state(op: str) -> dict[str, str]:
    """Return the text of every use of an op, by the name of the state that stores it.

    The state's name is its key too, and replaces SELF.
    """
    number = list(USES).index(op)
    states = {f"r{number}_{index}": use for index, use in enumerate(USES[op])}
    return {state: use.replace("SELF", state) for state, use in states.items()}


def hypers_read_by(ops: Iterable[str]) -> list[str]:
    """Return the hyperparameters that the uses of ops read; a spec may declare no other."""
    text = " ".join(use for op in ops for use in USES[op])
    return [name for name in HYPERS if re.search(rf"\b{name}\b", text)]


def spec_text(ops: Iterable[str]) -> str:
    """Return the text of a spec with all uses of these ops.

    A rule must read its states and its gradient, which the uses may not do. So the last line reads
    all of them, in a condition that never holds: `state < state`.
    """
    uses = {state: use for op in ops for state, use in uses_by_state(op).items()}
    states = [f'    {state}=state("{state}"),' for state in uses]
    hypers = [f"    {name}={HYPERS[name]}," for name in hypers_read_by(ops)]
    body = itertools.chain.from_iterable(starmap(statements, uses.items()))
    never = " or ".join(f"{state} < {state}" for state in uses)
    last = f"    p = where({never}, g, 0.5 * p)"
    doc = ["):", '    """Uses of some ops."""']
    return "\n".join([HEAD, *states, "    *,", *hypers, *doc, *body, last, ""])


def op_lists() -> Iterator[list[str]]:
    """Yield lists of ops that share a spec, so that few kernels are built."""
    ops: list[str] = []
    for op in USES:
        if sum(len(USES[name]) for name in [*ops, op]) > MAX_STATES:
            yield ops
            ops = []
        ops.append(op)
    yield ops


OPS_IN_SPEC_OF = {op: tuple(ops) for ops in op_lists() for op in ops}


@functools.cache
def class_and_algorithm(ops: tuple[str, ...]) -> tuple[type[torch.optim.Optimizer], Algorithm]:
    """Return the generated class and the algorithm of ops that share a spec."""
    source = Spec("Uses", spec_text(ops), f"<{' '.join(ops)}>", 1)
    (algorithm,) = read_spec(source)
    return optgen.load(source), add_maximize(algorithm)


def special_pairs(op: str) -> tuple[Tensor, Tensor]:
    """Return all pairs of special values, as a tensor of first values and one of second values."""
    numbers = SPECIAL_VALUES if op in OPS_WITHOUT_EXTREMES else SPECIAL_VALUES + EXTREME_VALUES
    p, g = zip(*itertools.product(numbers, numbers), strict=True)
    return torch.tensor(p, dtype=torch.float64), torch.tensor(g, dtype=torch.float64)


def test_uses_list_every_elementwise_op() -> None:
    assert set(USES) == set(ELEMENTWISE_OPS)


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("op", USES)
def test_an_op_means_what_ops_py_says(op: str, lowering: str) -> None:
    cls, algorithm = class_and_algorithm(OPS_IN_SPEC_OF[op])
    for c, d in VALUES_OF_C_AND_D:
        values = {"c": c, "d": d, "pair": (0.5, 0.25), "maybe": None}
        hypers: dict[str, Any] = {name: values[name] for name in hypers_read_by(OPS_IN_SPEC_OF[op])}
        p, g = special_pairs(op)
        param = torch.nn.Parameter(p.clone())
        optimizer = cls([param], **hypers)
        state: dict[str, Any] = {}
        for grad in (g, g.flip(0)):
            before = param.detach().clone()
            expected, state = evaluate(
                algorithm, {**hypers, "maximize": False}, before, grad, state
            )
            param.grad = grad
            with use_lowering(lowering):
                optimizer.step()
            for key, use in uses_by_state(op).items():
                assert_same(op, use, optimizer.state[param][key], state[key])
            torch.testing.assert_close(param.detach(), expected, equal_nan=True)


def assert_same(op: str, use: str, found: Tensor, expected: Tensor) -> None:
    """Check that results agree up to rounding, and in NaN, infinities and the signs of zeros."""
    if op in OPS_IN_OTHER_FORMS:
        finite = expected.isfinite()
        assert torch.equal(found.isfinite(), finite), use
        found, expected = found[finite], expected[finite]
    wrong = ~torch.isclose(found, expected, rtol=1e-12, atol=0, equal_nan=True)
    if op not in OPS_WITH_ANY_SIGN_OF_ZERO:
        wrong |= (expected == 0) & (found.signbit() != expected.signbit())
    assert not wrong.any(), (use, found[wrong], expected[wrong])


FUNCTION_NAMES = '''from optgen.spec import *

@optimizer(paper="https://example.org")
def Named(p, g, t, /, m=state("floor"), n=state("tanh"), *, lr=hyper(0.5), sin=hyper(2.0)):
    """Names of functions."""
    require(round(sin) == sin, "sin is {sin}")
    ceil = 1 + cos(g)
    m = m + floor(g * sin) * ceil
    n = tanh(n) + g
    p = p - lr * m * n * floor(t / 2 + 1)
'''


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_keys_and_variables_may_have_names_of_functions(lowering: str) -> None:
    source = Spec("Named", FUNCTION_NAMES, "<named>", 1)
    (algorithm,) = read_spec(source)
    cls = optgen.load(source)
    with pytest.raises(ValueError, match=r"sin is 2\.5"):
        cls([torch.ones(1)], sin=2.5)
    p, grad = torch.tensor([[0.5, -1.0], [1.25, -0.75]], dtype=torch.float64)
    state: dict[str, Any] = {}
    param = torch.nn.Parameter(p.clone())
    param.grad = grad
    optimizer = cls([param])
    for _ in range(3):
        p, state = evaluate(algorithm, {"lr": 0.5, "sin": 2.0}, p, grad, state)
        with use_lowering(lowering):
            optimizer.step()

    torch.testing.assert_close(param.detach(), p, rtol=1e-14, atol=0)
    for key in ("floor", "tanh"):
        torch.testing.assert_close(optimizer.state[param][key], state[key], rtol=1e-14, atol=0)
