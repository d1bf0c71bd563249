"""Test that Schedule-Free optimizers have the points of the paper in both modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from interpreter import outside_interpreter, run_inside
from runtime.programs.schedule_free import (
    ADAMW,
    LOWERINGS,
    SGD,
    check_close,
    gradient,
    parameters,
    train,
)
from torch import Tensor

import optgen


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


def published_sequences(
    start: Tensor,
    direction: Callable[[Tensor, int], Tensor],
    beta: float,
    lr: float,
    warmup: int,
    r: float,
    decay: float,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the paper's y and x after each step (equations 3 to 5).

    Steps use the gradient and the weight decay at y. The average x has the weights of section 4,
    with the warmup of the authors' code.
    """
    z, x, y = start.clone(), start.clone(), start.clone()
    largest = total = 0.0
    step = 0
    while True:
        rate = lr * min(1.0, (step + 1) / max(warmup, 1))
        largest = max(largest, rate)
        weight = (step + 1) ** r * largest**2
        total += weight
        z = z - rate * (direction(y, step) + decay * y)
        x = (1 - weight / total) * x + weight / total * z
        y = (1 - beta) * z + beta * x
        step += 1
        yield y, x


def adam_direction(beta2: float, eps: float) -> Callable[[Tensor, int], Tensor]:
    """Return Adam's direction without momentum, as a function of a point and the step."""
    squares: list[Tensor] = []

    def direction(y: Tensor, step: int) -> Tensor:
        g = gradient(y, step)
        squares.append(g * g)
        ages = range(len(squares) - 1, -1, -1)
        mean = sum(((1 - beta2) * beta2**age * s for age, s in zip(ages, squares, strict=True)))
        return g / ((mean / (1 - beta2 ** (step + 1))).sqrt() + eps)

    return direction


GROUPS = ({"lr": 0.05, "weight_decay": 0.1}, {"lr": 0.02})


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("rule", ["AdamW", "SGD"])
def test_thirty_steps_equal_those_of_the_paper(rule: str, lowering: str) -> None:
    """Two groups, warmup, weight decay, a checkpoint, and many changes of mode."""
    params, warmup, r, beta = parameters(), 10, 0.5, 0.85
    cls: Any = ADAMW if rule == "AdamW" else SGD
    betas = {"betas": (beta, 0.95)} if rule == "AdamW" else {"momentum": beta}
    groups = [{"params": params[:2], **GROUPS[0]}, {"params": params[2:], **GROUPS[1]}]
    optimizer = cls(groups, warmup_steps=warmup, r=r, **betas)
    expected = [
        published_sequences(
            param.detach().clone(),
            adam_direction(0.95, 1e-8) if rule == "AdamW" else gradient,
            beta,
            group["lr"],
            warmup,
            r,
            group.get("weight_decay", 0.0),
        )
        for group in groups
        for param in group["params"]
    ]
    with optgen.use_lowering(lowering):
        for step in range(30):
            train(optimizer, 1, step)
            points = list(map(next, expected))
            check_close(params, [y for y, _ in points])
            if step % 4 == 1:
                optimizer.eval()
                check_close(params, [x for _, x in points])
                if step == 9:
                    saved = optimizer.state_dict()
                    optimizer = cls([{"params": g["params"]} for g in groups])
                    optimizer.load_state_dict(saved)
                optimizer.train()
                check_close(params, [y for y, _ in points])
