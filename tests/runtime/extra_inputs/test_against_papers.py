"""Test that rules with extra inputs step as their papers and the oracle say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import outside_interpreter, run_inside
from runtime.extra_inputs.rules_with_inputs import (
    ADA_HESSIAN,
    ELEMENTWISE,
    LOWERINGS,
    SOPHIA,
    TWO_INPUTS,
    check_close,
    class_of,
    estimate,
    gradient,
    parameters,
)
from torch import Tensor

import optgen
from optgen.ir.evaluate import evaluate
from optgen.passes.prepare_rule import add_maximize
from optgen.spec.read_spec import read_spec


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_sophia_steps_as_its_paper_says(lowering: str) -> None:
    """Algorithm 3 of the paper with SophiaG's scale; two groups, and an estimate every 7 steps."""
    params, beta1, beta2, rho, size, decay = parameters(), 0.9, 0.95, 0.05, 10, 0.1
    rates = [0.02, 0.02, 0.01, 0.01]
    groups = [{"params": params[:2], "lr": 0.02}, {"params": params[2:], "lr": 0.01}]
    options = {"betas": (beta1, beta2), "rho": rho, "batch_size": size, "weight_decay": decay}
    optimizer: Any = SOPHIA(groups, **options)
    points = [param.detach().clone() for param in params]
    means = [torch.zeros_like(point) for point in points]
    diagonals = [torch.zeros_like(point) for point in points]
    for step in range(30):
        hessian = [estimate(point, step) for point in points] if step % 7 == 2 else None
        for param in params:
            param.grad = gradient(param, step)
        for i, point in enumerate(points):
            means[i] = beta1 * means[i] + (1 - beta1) * gradient(point, step)
            if hessian:
                diagonals[i] = beta2 * diagonals[i] + (1 - beta2) * hessian[i]
            scaled = means[i] / (rho * size * diagonals[i] + 1e-15)
            points[i] = point - rates[i] * decay * point - rates[i] * scaled.clamp(-1, 1)
        with optgen.use_lowering(lowering):
            optimizer.step(hessian=hessian)
        check_close(params, points)
    check_close([optimizer.state[param]["hessian"] for param in params], diagonals)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_ada_hessian_steps_as_its_paper_says(lowering: str) -> None:
    """Equations 9 to 12 of the paper, with eps and weight decay as in the authors' code."""
    params, beta1, beta2, lr, power, decay = parameters(), 0.9, 0.98, 0.1, 0.7, 0.1
    options = {"lr": lr, "betas": (beta1, beta2), "weight_decay": decay, "hessian_power": power}
    optimizer: Any = ADA_HESSIAN(params, **options)
    points = [param.detach().clone() for param in params]
    gradients: list[list[Tensor]] = [[] for _ in points]
    squares: list[list[Tensor]] = [[] for _ in points]
    for step in range(30):
        hessian = [estimate(point, step) for point in points]
        for i, (param, point) in enumerate(zip(params, points, strict=True)):
            param.grad = gradient(param, step)
            gradients[i].append(gradient(point, step))
            squares[i].append(hessian[i] ** 2)
            m, v = mean(gradients[i], beta1), mean(squares[i], beta2)
            points[i] = point - lr * (m / (v.sqrt() ** power + 1e-4) + decay * point)
        with optgen.use_lowering(lowering):
            optimizer.step(hessian=hessian)
        check_close(params, points)


def mean(values: list[Tensor], beta: float) -> Tensor:
    """Return the exponential mean without its bias towards zero."""
    weights = [(1 - beta) * beta**age for age in reversed(range(len(values)))]
    total = sum(w * v for w, v in zip(weights, values, strict=True))
    return torch.as_tensor(total) / (1 - beta ** len(values))


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("text", [TWO_INPUTS, ELEMENTWISE], ids=["sums", "elements"])
@pytest.mark.parametrize("options", [{}, {"fa": False, "maximize": True}], ids=str)
def test_every_combination_of_inputs_follows_the_rule(
    text: str, lowering: str, options: dict[str, Any]
) -> None:
    """Each step has inputs for some parameters only; each parameter follows the oracle."""
    cls = class_of(text)
    (rule,) = read_spec(cls.spec)
    params, algorithm = parameters(), add_maximize(rule)
    optimizer = cls(params, **options)
    hypers = {**{h.name: h.default for h in algorithm.hypers}, **options}
    expected: list[tuple[Tensor, dict[str, Any]]] = [(p.detach().clone(), {}) for p in params]
    for step in range(8):
        extra_inputs: dict[str, list[Tensor | None]] = {
            name: [
                estimate(param, step + 3 * number) if (step + i + number) % 3 == 0 else None
                for i, param in enumerate(params)
            ]
            for number, name in enumerate(("first", "second"))
        }
        if step == 4:
            extra_inputs = {}
        for i, param in enumerate(params):
            param.grad = gradient(param, step)
            inputs_of_param = {
                name: tensors[i] for name, tensors in extra_inputs.items() if tensors[i] is not None
            }
            given = {f"given_{name}": name in inputs_of_param for name in ("first", "second")}
            inputs = {f"{name}_input": tensor for name, tensor in inputs_of_param.items()}
            point, state = expected[i]
            grad = gradient(point, step)
            point, state = evaluate(
                algorithm, hypers | given, point, grad, state | inputs, torch.float64
            )
            states_only = {key: value for key, value in state.items() if not key.endswith("_input")}
            expected[i] = point, states_only
        with optgen.use_lowering(lowering):
            optimizer.step(**extra_inputs)
        check_close(params, [point for point, _ in expected])
        for param, (_, state) in zip(params, expected, strict=True):
            assert list(optimizer.state[param]) == ["step", "m", "s"]
            check_close([optimizer.state[param]["m"]], [state["m"]])
