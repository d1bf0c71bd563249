"""Test states that exist up to a size: errors, the oracle, checkpoints, and limits that differ."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from conftest import Golden
from spec_texts import LR, read, spec

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

MATRIX = 'require(ndim(p) == 2, "no matrix: {shape}")'
USE = ("if rows(p) <= k:", "    L = L + g @ transpose(g)", "    g = L @ g", "p = p - lr * g")
HYPERS = f"{LR}, k=hyper(3, ge=1), few=hyper(None, optional=True)"


def state(when: str, shape: str = '("rows", "rows")') -> str:
    return f'L=state("gram", shape={shape}, when="{when}")'


CASES = {
    "a limit of nothing": spec(MATRIX, *USE, states=state("rows(g) <= k"), hypers=HYPERS),
    "a limit that is met": spec(MATRIX, *USE, states=state("rows(p) < k"), hypers=HYPERS),
    "a limit of an expression": spec(MATRIX, *USE, states=state("rows(p) <= 2 * k"), hypers=HYPERS),
    "a limit of half a row": spec(MATRIX, *USE, states=state("rows(p) <= 2.5"), hypers=HYPERS),
    "an unknown limit": spec(MATRIX, *USE, states=state("rows(p) <= most"), hypers=HYPERS),
    "a limit that may be None": spec(MATRIX, *USE, states=state("rows(p) <= few"), hypers=HYPERS),
    "a limit for rows": spec(MATRIX, *USE, states=state("rows(p) <= k", '"row"'), hypers=HYPERS),
    "a read above the limit": spec(
        MATRIX, "L = L + g @ transpose(g)", states=state("rows(p) <= k"), hypers=HYPERS
    ),
    "a read above the limit of other columns": spec(
        MATRIX, *USE, states=state("cols(p) <= k"), hypers=HYPERS
    ),
    "a matrix of vectors above a limit": spec(
        "if factored(p):",
        "    if rows(p) > k:",
        "        L = L + g @ transpose(g)",
        states=state("rows(p) > k"),
        hypers=HYPERS,
    ),
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_error(text: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        read(text)

    golden.check(str(raised.value))


RULE = '''from optgen.spec import *

@optimizer()
def Sided(
    p, g, /,
    L=state("left", shape=("rows", "rows"), when="rows(p) <= largest"),
    R=state("right", shape=("cols", "cols"), when="cols(p) <= 4"),
    *, lr=hyper(0.1), largest=hyper(3, ge=0, whole=True),
):
    """Made up."""
    if factored(p):
        if largest >= rows(p):
            L = lerp(L, g @ transpose(g), 0.5)
            g = L @ g
        if not cols(p) > 4:
            R = R + transpose(g) @ g
            g = g @ R
        else:
            g = 2 * g
    p = p - lr * g
'''
SHAPES = ((3, 3), (3, 5), (4, 5), (4, 4), (6,), (), (2, 3, 5))


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_each_group_has_its_own_limit(lowering: str) -> None:
    """The second group has no left matrices, and its number is a value of the group."""
    rule = Spec("Sided", RULE, "sided.py", 1)
    (algorithm,) = read_spec(rule)
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(s, generator=generator).double() for s in (*SHAPES, *SHAPES)]
    limits = [3] * len(SHAPES) + [2] * len(SHAPES)
    expected: list[tuple[torch.Tensor, dict[str, Any]]] = [(p.clone(), {}) for p in params]
    groups = [{"params": params[:7]}, {"params": params[7:], "largest": 2}]
    optimizer = optgen.load(rule)(groups)
    for step in range(4):
        for index, (param, limit) in enumerate(zip(params, limits, strict=True)):
            param.grad = torch.randn(param.shape, generator=generator).double()
            hypers = {"lr": 0.1, "largest": limit, "maximize": False}
            old, state = expected[index]
            expected[index] = evaluate(algorithm, hypers, old, param.grad, state)
        with use_lowering(lowering):
            optimizer.step()
        if step == 1:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for param, (value, state) in zip(params, expected, strict=True):
        torch.testing.assert_close(param, value, rtol=1e-12, atol=1e-12)
        assert set(optimizer.state[param]) == set(state)
    assert "left" in optimizer.state[params[0]]
    assert not {"left", "right"} & set(optimizer.state[params[7 + 2]])


WITH_A_START = """
            if fresh(L):
                L = identity(L)
            L = lerp"""


def test_a_composition_asks_whether_a_limited_state_is_new() -> None:
    """accumulate marks new states, also for parameters that have no rows."""
    text = RULE.replace("p, g, /", "p, g, t, /").replace("\n            L = lerp", WITH_A_START)
    composed = optgen.compose(
        optgen.load(Spec("Sided", text, "sided.py", 1)), optgen.modifiers.accumulate
    )
    params = [torch.ones(shape, requires_grad=True) for shape in SHAPES]
    optimizer = composed(params, largest=3)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert ["left" in optimizer.state[p] for p in params] == [True, True, *[False] * 4, True]
    expected = 0.5 * torch.eye(3) + 1.5 * torch.ones(3, 3)
    torch.testing.assert_close(optimizer.state[params[0]]["left"], expected)
