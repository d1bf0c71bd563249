"""Implement published optimizers as their papers write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Published:
    """An optimizer whose rule is a function, with a dict of states for each parameter."""

    def __init__(self, groups: Sequence[dict[str, Any]], rule: Callable[..., Tensor]) -> None:
        self.groups, self.rule = groups, rule
        self.params: list[Tensor] = [param for group in groups for param in group["params"]]
        self.states: list[dict[str, Tensor]] = [{} for _ in self.params]
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        rates = [group["lr"] for group in self.groups for _ in group["params"]]
        for param, state, lr in zip(self.params, self.states, rates, strict=True):
            param.copy_(self.rule(param.clone(), param.grad, state, self.steps, lr))


def moments(gradient: Tensor, state: dict[str, Tensor], step: int) -> tuple[Tensor, Tensor]:
    """Return Adam's bias-corrected means of gradients and of their squares."""
    for key, value, beta in (("m", gradient, BETA1), ("v", gradient**2, BETA2)):
        state[key] = beta * state.get(key, 0) + (1 - beta) * value
    return state["m"] / (1 - BETA1**step), state["v"] / (1 - BETA2**step)


def lamb(param: Tensor, gradient: Tensor, state: Any, step: int, lr: float) -> Tensor:
    """LAMB (You et al., 2019, algorithm 2) with a decay of 0.1."""
    m, v = moments(gradient, state, step)
    direction = m / (v.sqrt() + EPS) + 0.1 * param
    return param - lr * (param.norm() / direction.norm()) * direction


def adam_h(param: Tensor, gradient: Tensor, state: Any, step: int, lr: float) -> Tensor:
    """AdamH (Wen et al., 2025): a step in Adam's direction that keeps the weights' norm."""
    m, v = moments(gradient, state, step)
    direction = m / (v.sqrt() + EPS)
    moved = param - lr * param.norm() * direction / direction.norm()
    return param.norm() * moved / moved.norm()


def cautious_adamw(param: Tensor, gradient: Tensor, state: Any, step: int, lr: float) -> Tensor:
    """C-AdamW (Liang et al., 2024): the decay of 0.1 is not masked."""
    m, v = moments(gradient, state, step)
    mask = (m * gradient > 0).double()
    return param - lr * 0.1 * param - lr * m / (v.sqrt() + EPS) * mask / max(mask.mean(), 1e-3)


def ranger(param: Tensor, gradient: Tensor, state: Any, step: int, lr: float) -> Tensor:
    """Ranger (Wright & Demeure, 2021, without the parts of Ranger21).

    RAdam with centralized gradients of matrices, and Lookahead: every fifth step, the slow weights
    move half of the way to the weights. They begin as the first weights.
    """
    slow = state.setdefault("slow", param.clone())
    if param.ndim > 1:
        gradient = gradient - gradient.mean(dim=1, keepdim=True)
    m = moments(gradient, state, step)[0]
    max_length = 2 / (1 - BETA2) - 1
    length = max_length - 2 * step * BETA2**step / (1 - BETA2**step)
    if length > 5:
        numerator = (length - 4) * (length - 2) * max_length
        denominator = (max_length - 4) * (max_length - 2) * length
        root = (state["v"].sqrt() + EPS) / math.sqrt(1 - BETA2**step)
        fast = param - lr * math.sqrt(numerator / denominator) * m / root
    else:
        fast = param - lr * m
    if step % 5 == 0:
        state["slow"] = slow + 0.5 * (fast - slow)
        return state["slow"]
    return fast
