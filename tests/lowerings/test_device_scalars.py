"""Test scalar states that reductions feed: equal to the papers, on the device, kept in files."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from lowerings.capture import captured
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.runtime.state.scalars import as_scalar

SPECS = Path(__file__).parent.parent / "specs"
LOWERINGS = ("forloop", "foreach", "fused_cpu")
SHAPES = ((5,), (4, 3), (), (2, 3, 4))
Own = dict[str, Any]


def novograd(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of NovoGrad as arXiv 1905.11286 has it; return the new parameter."""
    size = g.square().sum()
    own["v"] = 0.98 * own["v"] + 0.02 * size if "v" in own else size
    own["m"] = 0.95 * own.get("m", 0) + g / (own["v"].sqrt() + 1e-8) + 0.1 * p
    return p - 0.01 * own["m"]


def stable_spam(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Stable-SPAM as arXiv 2502.17055 has it; return the new parameter."""
    own["t"] = t = own.get("t", 0) + 1
    own["k"] = k = 1 if t % 7 == 0 else own.get("k", 0) + 1
    if k == 1:
        own["m"] = own["v"] = torch.zeros_like(p)
    p = p * (1 - 0.01 * 0.1)
    own["top"] = 0.999 * own.get("top", 0) + 0.001 * g.abs().max()
    limit = own["top"] / (1 - 0.999**t)
    g = torch.where(g.abs() > limit, g / g.abs().max() * limit, g)
    own["a"] = 0.7 * own.get("a", 0) + 0.3 * g.norm()
    own["b"] = 0.9 * own.get("b", 0) + 0.1 * g.norm() ** 2
    scale = own["a"] / (1 - 0.7**t) / ((own["b"] / (1 - 0.9**t)).sqrt() + 1e-8)
    g = g / g.norm() * scale
    own["m"] = 0.9 * own["m"] + 0.1 * g
    own["v"] = 0.999 * own["v"] + 0.001 * g.square()
    root = (own["v"] / (1 - 0.999**k)).sqrt() + 1e-8
    return p - 0.01 * own["m"] / (1 - 0.9**k) / root


PAPERS: dict[str, tuple[Callable[[Tensor, Tensor, Own], Tensor], dict[str, Any]]] = {
    "novograd": (novograd, {}),
    "stablespam": (stable_spam, {"reset_every": 7}),
}
KEYS = {
    "novograd": {"exp_avg_sq": "v"},
    "stablespam": {"m_norm_t": "a", "v_norm_t": "b", "m_max_t": "top"},
}


def drawn(step: int) -> list[Tensor]:
    """Return a tensor of every shape; every fifth step has a spike."""
    generator = torch.Generator().manual_seed(step)
    size = 20.0 if step % 5 == 4 else 1.0
    return [torch.randn(s, generator=generator, dtype=torch.float64) * size for s in SHAPES]


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", PAPERS)
def test_equal_to_the_paper(name: str, lowering: str) -> None:
    follow_the_paper(name, lowering)


@inside_interpreter
@pytest.mark.parametrize("name", PAPERS)
def test_kernels_equal_the_paper(name: str) -> None:
    follow_the_paper(name, "fused_triton")


@outside_interpreter
def test_in_the_interpreter() -> None:
    run_inside(__file__)


def follow_the_paper(name: str, lowering: str) -> None:
    """Check 30 steps of a lowering, and the scalars that they leave."""
    step_of, options = PAPERS[name]
    right = drawn(100)
    params = [p.clone() for p in right]
    optimizer = optgen.load(SPECS / f"{name}.py")(params, lr=0.01, weight_decay=0.1, **options)
    own: list[Own] = [{} for _ in params]
    for step in range(30):
        grads = drawn(step)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        with use_lowering(lowering):
            optimizer.step()
        right = [step_of(*each) for each in zip(right, grads, own, strict=True)]
    for param, expected, values in zip(params, right, own, strict=True):
        torch.testing.assert_close(param, expected, rtol=0, atol=1e-10)
        for key, symbol in KEYS[name].items():
            found = optimizer.state[param][key]
            assert (found.dtype, found.shape) == (torch.float64, torch.Size())
            assert math.isclose(found.item(), values[symbol].item(), rel_tol=1e-12)


@outside_interpreter
@pytest.mark.parametrize("name", [*PAPERS, "fedscalars"])
def test_no_step_reads_them_on_the_host(name: str) -> None:
    params = drawn(100)
    optimizer = optgen.load(SPECS / f"{name}.py")(params, capturable=True)
    reference = optgen.load(SPECS / f"{name}.py")(clones := [p.clone() for p in params])
    for step in range(3):
        for param, clone, grad in zip(params, clones, drawn(step), strict=True):
            param.grad, clone.grad = grad, grad.clone()
        with captured():
            optimizer.step()
        with use_lowering("forloop"):
            reference.step()
    for param, clone in zip(params, clones, strict=True):
        torch.testing.assert_close(param, clone, rtol=0, atol=1e-13)


@outside_interpreter
def test_they_live_on_the_device_of_the_parameter() -> None:
    """Scalars that the host computes stay on the CPU."""
    rule = optgen.load(SPECS / "stablespam.py").rule
    kinds = {state.key: state.on_device for state in rule.states if state.shape == "scalar"}
    assert kinds == {"m_norm_t": True, "v_norm_t": True, "m_max_t": True, "inner_step": False}
    param = torch.empty(3, device="meta")
    for on_device, device in ((True, "meta"), (False, "cpu")):
        made = as_scalar(0.0, rule, {}, param, torch.float64, on_device)
        assert made.device.type == device


@outside_interpreter
@pytest.mark.parametrize("name", [*PAPERS, "fedscalars"])
def test_a_checkpoint_holds_them(name: str) -> None:
    made = optgen.load(SPECS / f"{name}.py")
    params = drawn(100)
    optimizer = made(params)

    def step(optimizer: Any, params: list[Tensor], number: int) -> None:
        for param, grad in zip(params, drawn(number), strict=True):
            param.grad = grad
        optimizer.step()

    step(optimizer, params, 0)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    clones = [p.clone() for p in params]
    resumed = made(clones)
    resumed.load_state_dict(torch.load(file))
    for number in (1, 2):
        step(optimizer, params, number)
        step(resumed, clones, number)
    for param, clone in zip(params, clones, strict=True):
        assert torch.equal(param, clone)
        for key, value in optimizer.state[param].items():
            assert torch.equal(value, resumed.state[clone][key])
            assert value.dtype == resumed.state[clone][key].dtype
