"""Test extra inputs that have another shape than their parameter, and given numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from conftest import Golden
from spec_texts import LR, read, spec
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.spec import Spec
from optgen.spec.errors import SpecError

RULE = '''from optgen.spec import *

@optimizer()
def Shaped(
    p, g,
    cov=given("cov", shape=("cols", "cols")),
    w=given("weights", shape="row"),
    loss=given("loss", shape=()),
    /, m=state("m"), *, lr=hyper(0.1),
):
    """Made up."""
    require(ndim(p) >= 2, "{shape}")
    m = lerp(m, g, 0.25) * loss
    if given(cov):
        p = p - lr * w * (m @ cov)
    else:
        p = p - lr * w * m
'''
ELEMENTWISE = '''from optgen.spec import *

@optimizer()
def Scaled(p, g, loss=given("loss", shape=()), /, *, lr=hyper(0.1)):
    """Made up."""
    p = p - lr * loss * g / (1 + abs(g))
'''
SHAPES = ((4, 3), (2, 4, 5), (12, 5))
VIEW = (3, 4, 5)  # of the last parameter
LOWERINGS = ("forloop", "foreach", "fused_cpu")


def optimizer_of(text: str, groups: Any) -> Any:
    return optgen.load(Spec("made", text, "made.py", 1))(groups)


def drawn(generator: torch.Generator, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_inputs_have_their_shapes(lowering: str) -> None:
    generator = torch.Generator().manual_seed(0)
    params = [x.requires_grad_() for x in drawn(generator, *SHAPES)]
    optimizer = optimizer_of(RULE, [{"params": params[:2]}, {"params": params[2:], "view": VIEW}])
    expected = [
        param.detach().clone().view(VIEW if i == 2 else SHAPES[i]) for i, param in enumerate(params)
    ]
    means = [torch.zeros_like(x) for x in expected]
    for step, loss in enumerate((2.5, torch.tensor(1.5), 3)):
        covs: list[Tensor | None] = [*drawn(generator, (3, 3), (2, 5, 5), (3, 5, 5))]
        covs[1] = None if step == 1 else covs[1]
        weights = drawn(generator, (4, 1), (2, 4, 1), (3, 4, 1))
        for i, param in enumerate(params):
            param.grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
            grad = param.grad.view(expected[i].shape)
            means[i] = torch.lerp(means[i], grad, 0.25) * loss
            cov = covs[i]
            update = means[i] if cov is None else means[i] @ cov
            expected[i] = expected[i] - 0.1 * weights[i] * update
        with use_lowering(lowering):
            optimizer.step(cov=covs, weights=weights, loss=loss)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for param, value in zip(params, expected, strict=True):
        torch.testing.assert_close(param.detach(), value.view(param.shape), rtol=1e-12, atol=1e-12)
    assert set(optimizer.state[params[0]]) == {"m"}


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_an_elementwise_rule_takes_a_number(lowering: str) -> None:
    params = [torch.ones(5, requires_grad=True), torch.ones((), requires_grad=True)]
    optimizer = optimizer_of(ELEMENTWISE, params)
    for loss in (2.0, torch.tensor([0.5])):
        for param in params:
            param.grad = torch.ones_like(param)
        with use_lowering(lowering):
            optimizer.step(loss=loss)
    for param in params:
        torch.testing.assert_close(param.detach(), torch.full_like(param, 1 - 0.05 * 2.5))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"cov": [torch.ones(3, 3), torch.ones(5, 5), None]},
            ValueError,
            r"cov\[1\] has the shape \(5, 5\), but its parameter .*\(2, 4, 5\) needs \(2, 5, 5\)",
        ),
        (
            {"cov": [torch.ones(3, 3).double(), None, None]},
            TypeError,
            r"cov\[0\] has the dtype torch.float64, but its parameter torch.float32",
        ),
        ({"loss": [1.0, 2.0, 3.0]}, TypeError, r"loss is one number for all parameters, not \[1.0"),
        ({"loss": torch.ones(2)}, TypeError, "loss is one number for all parameters"),
        ({"loss": None}, ValueError, r"the rule needs loss .* has none: step\(loss=…\)"),
        ({"weights": None}, ValueError, r"the rule needs weights .* step\(weights=\[…\]\)"),
    ],
)
def test_an_input_that_does_not_fit_changes_nothing(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    params = [torch.ones(s, requires_grad=True) for s in SHAPES]
    optimizer = optimizer_of(RULE, params)
    for param in params:
        param.grad = torch.ones_like(param)
    weights = [torch.ones(4, 1), torch.ones(2, 4, 1), torch.ones(12, 1)]
    inputs = {"cov": [None, None, None], "weights": weights, "loss": 1.0}
    with pytest.raises(error, match=message):
        optimizer.step(**(inputs | change))
    with pytest.raises(ValueError, match="the rule needs loss for each parameter with a gradient"):
        optimizer.step(weights=weights)
    assert all(torch.equal(param, torch.ones_like(param)) for param in params)
    optimizer.step(**inputs)


def with_input(declaration: str, *rule: str) -> str:
    return spec(*rule, hypers=LR).replace("t, /", f"t, h={declaration}, /")


CASES = {
    "an unknown shape": with_input('given("h", shape=("rows", 4))', "p = p - lr * h * g"),
    "an unknown option": with_input('given("h", like="p")', "p = p - lr * h * g"),
    "rows of any parameter": with_input('given("h", shape="row")', "p = p - lr * h * g"),
    "a number that may be absent": with_input(
        'given("h", shape=())', "if given(h):", "    g = h * g", "p = p - lr * g"
    ),
    "an if on a number": with_input('given("h", shape=())', "if h > 0:", "    p = p - lr * g"),
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_error(text: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        read(text)

    golden.check(str(raised.value))
