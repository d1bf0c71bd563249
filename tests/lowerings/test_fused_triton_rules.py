"""Test rules outside the catalogue in Triton's interpreter against the oracle."""

from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from lowerings import uncommon_rules

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.runtime.rule import NONE
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

pytest.importorskip("triton")

RULES = [
    ("Lion", {}),
    ("AveragedSGD", {}),
    ("AveragedSGD", {"plain": True}),
    ("AveragedSGD", {"nest": False}),
    ("AveragedSGD", {"clip": 0.1}),
    ("NameClashes", {}),
    ("Branches", {}),
]


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@inside_interpreter
@pytest.mark.parametrize(("name", "settings"), RULES)
def test_kernels_agree_with_the_oracle(name: str, settings: dict[str, Any]) -> None:
    algorithms = {a.name: a for a in read_spec(Path(uncommon_rules.__file__))}
    generator = torch.Generator().manual_seed(0)
    expected_params = [torch.randn(n, generator=generator, dtype=torch.float64) for n in (5, 1025)]
    params = [value.clone().requires_grad_() for value in expected_params]
    optimizer = optgen.load(getattr(uncommon_rules, name))(params, **settings)
    group = optimizer.param_groups[0]
    states: list[dict[str, Any]] = [{}, {}]
    for step in range(7):
        for i, param in enumerate(params):
            grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
            param.grad = None if (step + i) % 4 == 3 else grad
            if param.grad is not None:
                expected_params[i], states[i] = evaluate(
                    algorithms[name], group, expected_params[i], grad, states[i], torch.float32
                )
        with use_lowering("fused_triton"):
            optimizer.step()
    for param, value, state in zip(params, expected_params, states, strict=True):
        torch.testing.assert_close(param.detach(), value, rtol=1e-13, atol=1e-14)
        for key, found in optimizer.state[param].items():
            expected = torch.as_tensor(state[key], dtype=torch.float64)
            torch.testing.assert_close(found.double(), expected, rtol=1e-13, atol=1e-14)


MAYBE = '''
from optgen.spec import *

@optimizer()
def Maybe(p, g, /, *, lr=hyper(0.5), clip=hyper(None, optional=True)):
    """None and 0 differ."""
    if clip is None:
        g = 2 * g
    if clip:
        g = clamp(g, -clip, clip)
    p = p - lr * g
'''


@inside_interpreter
@pytest.mark.parametrize(
    ("clip", "distance"),
    [(None, 1.0), (0.25, 0.125), (0, 0.5), (torch.nan, torch.nan), (NONE, 1.0)],
)
def test_a_kernel_distinguishes_none_from_other_nans(clip: float | None, distance: float) -> None:
    """A kernel receives None as a NaN with bits of its own."""
    param = torch.zeros(3, requires_grad=True)
    optimizer = optgen.load(Spec("Maybe", MAYBE, "<maybe>", 1))([param])
    optimizer.param_groups[0]["clip"] = clip
    param.grad = -torch.ones(3)

    with use_lowering("fused_triton"):
        optimizer.step()

    torch.testing.assert_close(param.detach(), torch.full((3,), distance), equal_nan=True)
