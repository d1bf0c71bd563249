"""Test the oracle on rules with reductions, rows, columns and matrix ops, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from planning import WITH_PHASES
from torch import Tensor

from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.passes.prepare_rule import add_maximize

STEPS = 50
SHAPES = ((), (7,), (5, 3), (3, 5), (2, 3, 4, 5), (1, 4))

ADAFACTOR: tuple[dict[str, Any], ...] = (
    {},
    {"lr": 0.01},
    {"weight_decay": 0.1, "lr": 0.001},
    {"beta2_decay": -0.9, "maximize": True},
    {"d": 1.5},
    {"eps": (1e-3, 1e-3)},
    {"eps": (None, 0.5), "d": 1.0, "lr": torch.tensor(0.01, dtype=torch.float64)},
)
MUON: tuple[dict[str, Any], ...] = (
    {},
    {"weight_decay": 0.2, "momentum": 0.8},
    {"nesterov": False},
    {"adjust_lr_fn": "original"},
    {"adjust_lr_fn": "match_rms_adamw", "lr": 0.02},
    {"ns_steps": 3, "ns_coefficients": (3.0, -4.0, 2.0), "eps": 10.0},
)


def orthogonalize(x: Tensor, coefficients: Any, steps: int, eps: float) -> Tensor:
    """Return torch's Newton-Schulz result in float64; torch itself computes in bfloat16."""
    a, b, c = coefficients
    y = x.T if x.size(0) > x.size(1) else x
    y = y / y.norm().clamp(min=eps)
    for _ in range(steps):
        gram = y @ y.T
        y = torch.addmm(y, torch.addmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return y.T if x.size(0) > x.size(1) else y


@contextmanager
def float64_scalars() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def assert_steps_as_torch(
    algorithm: Algorithm,
    make: Callable[..., torch.optim.Optimizer],
    shape: tuple[int, ...],
    flags: dict[str, Any],
) -> None:
    """Check that fifty steps end at torch's parameters, and at every state that torch keeps."""
    generator = torch.Generator().manual_seed(11)
    hypers = {h.name: h.default for h in algorithm.hypers} | flags
    ours = torch.randn(shape, generator=generator, dtype=torch.float64)
    theirs = torch.nn.Parameter(ours.clone())
    reference = make([theirs], **flags)
    state: dict[str, Any] = {}
    for _ in range(STEPS):
        grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        theirs.grad = grad.clone()
        reference.step()
        ours, state = evaluate(algorithm, hypers, ours, grad, state, torch.float64)
    expected = reference.state[theirs]
    # Either state may lack a step count.
    assert {*state, "step"} == {*expected, "step"}
    for found, wanted in [(ours, theirs.detach()), *((state[k], expected[k]) for k in expected)]:
        found = torch.as_tensor(found, dtype=torch.float64)
        assert found.shape == wanted.shape
        assert (found - wanted).abs().max() <= 1e-12 * wanted.abs().max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("flags", ADAFACTOR, ids=str)
def test_adafactor_steps_as_torch(flags: dict[str, Any], shape: tuple[int, ...]) -> None:
    algorithm = add_maximize(WITH_PHASES["Adafactor"])
    with float64_scalars():
        assert_steps_as_torch(algorithm, torch.optim.Adafactor, shape, flags)


@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) == 2], ids=str)
@pytest.mark.parametrize("flags", MUON, ids=str)
def test_muon_steps_as_torch(
    flags: dict[str, Any], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", orthogonalize)
    assert_steps_as_torch(WITH_PHASES["Muon"], torch.optim.Muon, shape, flags)


def lamb(p: Tensor, g: Tensor, state: dict[str, Any], t: int, decay: float) -> Tensor:
    """Return the parameter after a step as in the paper, with torch's norms; store new states."""
    m = state["exp_avg"] = 0.9 * state.get("exp_avg", 0) + 0.1 * g
    v = state["exp_avg_sq"] = 0.999 * state.get("exp_avg_sq", 0) + 0.001 * g * g
    u = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + decay * p
    norms = torch.linalg.vector_norm(p).item(), torch.linalg.vector_norm(u).item()
    return p - 1e-3 * (norms[0] / norms[1] if all(norms) else 1) * u


def lars(p: Tensor, g: Tensor, state: dict[str, Any], t: int, decay: float) -> Tensor:
    norms = torch.linalg.vector_norm(p).item(), torch.linalg.vector_norm(g).item()
    ratio = 1e-3 * norms[0] / (norms[1] + decay * norms[0] + 1e-8) if all(norms) else 1
    u = ratio * (g + decay * p)
    b = state["momentum_buffer"] = u if t == 1 else 0.9 * state["momentum_buffer"] + u
    return p - 0.1 * b


def came(p: Tensor, g: Tensor, state: dict[str, Any], t: int, decay: float) -> Tensor:
    def factors(name: str, beta: float, squares: Tensor) -> Tensor:
        rows, cols = f"exp_avg_{name}_row", f"exp_avg_{name}_col"
        r = state[rows] = beta * state.get(rows, 0) + (1 - beta) * squares.mean(1, keepdim=True)
        c = state[cols] = beta * state.get(cols, 0) + (1 - beta) * squares.mean(0, keepdim=True)
        return ((r / r.mean()) @ c).rsqrt()

    u = g * factors("sq", 0.999, g * g + 1e-30)
    u = u / max(1.0, torch.linalg.vector_norm(u).item() / u.numel() ** 0.5)
    m = state["exp_avg"] = 0.9 * state.get("exp_avg", 0) + 0.1 * u
    return p - 2e-4 * m * factors("res", 0.9999, (u - m) ** 2 + 1e-16) - 2e-4 * decay * p


OPTIONS = {"LARS": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}}
REFERENCES = {"LAMB": lamb, "LARS": lars, "CAME": came}
SHAPES_AND_STARTS = [((), 1.0), ((6,), 1.0), ((3, 4), 1.0), ((3, 4), 0.0)]
CAME_CASES = [("CAME", (3, 4), 1.0), ("CAME", (5, 2), 0.0)]


@pytest.mark.parametrize(
    ("name", "shape", "start"),
    [(name, *case) for name in ("LAMB", "LARS") for case in SHAPES_AND_STARTS] + CAME_CASES,
    ids=str,
)
def test_rules_that_torch_lacks_step_as_their_papers(
    name: str, shape: tuple[int, ...], start: float
) -> None:
    """Parameters start at random values or at zero."""
    algorithm = WITH_PHASES[name]
    hypers = {h.name: h.default for h in algorithm.hypers} | OPTIONS.get(name, {})
    generator = torch.Generator().manual_seed(5)
    ours = theirs = start * torch.randn(shape, generator=generator, dtype=torch.float64)
    state: dict[str, Any] = {}
    reference_state: dict[str, Any] = {}
    for t in range(1, STEPS + 1):
        grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        theirs = REFERENCES[name](theirs, grad, reference_state, t, hypers["weight_decay"])
        ours, state = evaluate(algorithm, hypers, ours, grad, state)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)
    for key, value in reference_state.items():
        torch.testing.assert_close(state[key], value, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_machine_eps_is_that_of_the_parameters_dtype(dtype: torch.dtype) -> None:
    """The gradient is so small that machine_eps squared exceeds the second moment."""
    algorithm = WITH_PHASES["Adafactor"]
    hypers = {h.name: h.default for h in algorithm.hypers}
    eps = torch.finfo(dtype).eps
    grad = torch.tensor([eps / 8])
    unclipped, _ = evaluate(algorithm, hypers, torch.ones(1, dtype=dtype), grad, {})
    torch.testing.assert_close(unclipped.item(), 1 - 0.01 / 8, rtol=1e-12, atol=0)
