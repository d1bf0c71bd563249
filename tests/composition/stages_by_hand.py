"""Implement modifiers by hand around an optimizer of torch, in the order of docs/compose.md.

A modifier of the gradient is a function of a parameter p and its gradient g. A modifier of the
update is a function of p before the step, g as the optimizer reads it, the update u and the
learning rate. The update is what the step adds to p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from composition.by_hand import unitwise_norm
from composition.training import params_and_lrs
from torch import Tensor

import optgen
from optgen import modifiers as catalogue

STAGES = (
    *("skip_nonfinite", "accumulate", "centralize", "gradient_noise", "clip_value"),
    *("clip_tensor_norm|adaptive_clip", "clip_norm", "coupled_decay", "amsgrad"),
    *("cautious|grams", "trust_ratio|update_floor"),
    "decoupled_decay|decay_after|proximal_decay|fixed_decay|corrected_decay|cautious_decay",
    *("hyperball", "lookahead|ema_nesterov", "master|kahan|stochastic_rounding|schedule_free"),
    "ema|low_precision_copy|zero_grad",
)
"""The table of docs/compose.md: the modifiers of one stage stand together."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "accumulate": {"accumulated_steps": 2},
    "adaptive_clip": {"clip_factor": 0.1},
    "cautious_decay": {"decay": 0.1},
    "clip_norm": {"max_norm": 1.0},
    "clip_tensor_norm": {"max_tensor_norm": 0.5},
    "clip_value": {"max_value": 0.3},
    "corrected_decay": {"decay": 0.2, "max_lr": 0.1},
    "coupled_decay": {"l2": 0.1},
    "decay_after": {"decay": 0.1},
    "decoupled_decay": {"decay": 0.1},
    "ema": {"ema_decay": 0.9},
    "ema_nesterov": {"look_ahead": 0.4, "move_decay": 0.9},
    "fixed_decay": {"decay": 0.01},
    "gradient_noise": {"noise_eta": 0.5, "noise_gamma": 0.55},
    "lookahead": {"sync_period": 3, "slow_step": 0.4},
    "proximal_decay": {"decay": 0.1},
    "schedule_free": {"average_momentum": 0.8},
    "update_floor": {"least_ratio": 2.0},
}


def order_by_stage(names: Sequence[str]) -> list[str]:
    """Return modifiers in the order of their stages."""
    stages = [stage.split("|") for stage in STAGES]
    return [name for stage in stages for name in names if name in stage]


def _adaptive_clip(p: Tensor, g: Tensor) -> Tensor:
    max_norm, norm = 0.1 * unitwise_norm(p).clamp(min=1e-3), unitwise_norm(g)
    return torch.where(norm > max_norm, g * max_norm / norm.clamp(min=1e-6), g)


def _centralize(p: Tensor, g: Tensor) -> Tensor:
    return g - g.mean(dim=1, keepdim=True) if p.ndim > 1 else g


GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "adaptive_clip": _adaptive_clip,
    "centralize": _centralize,
    "clip_tensor_norm": lambda p, g: g * min(0.5 / (g.norm().item() + 1e-6), 1.0),
    "clip_value": lambda p, g: g.clamp(-0.3, 0.3),
    "coupled_decay": lambda p, g: g.add(p, alpha=0.1),
}


def _cautious(p: Tensor, g: Tensor, u: Tensor, lr: float) -> Tensor:
    mask = (u * g < 0).to(p.dtype)
    return u * mask / mask.mean().clamp(min=1e-3)


def _hyperball(p: Tensor, g: Tensor, u: Tensor, lr: float) -> Tensor:
    moved = p + lr * p.norm() * u / u.norm()
    return p.norm() * moved / moved.norm() - p


UPDATES: dict[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "cautious": _cautious,
    "cautious_decay": lambda p, g, u, lr: u - lr * 0.1 * p * (u * p <= 0),
    "corrected_decay": lambda p, g, u, lr: u - lr * (lr / 0.1) * 0.2 * p,
    "decay_after": lambda p, g, u, lr: (p + u) * (1 - lr * 0.1) - p,
    "decoupled_decay": lambda p, g, u, lr: u - lr * 0.1 * p,
    "fixed_decay": lambda p, g, u, lr: u - 0.01 * p,
    "grams": lambda p, g, u, lr: -g.sign() * u.abs(),
    "hyperball": _hyperball,
    "proximal_decay": lambda p, g, u, lr: (p + u) / (1 + lr * 0.1) - p,
    "trust_ratio": lambda p, g, u, lr: u * (lr * p.norm() / u.norm()),
    "update_floor": lambda p, g, u, lr: u * (2.0 * lr * p.norm() / u.norm()).clamp(min=1),
}


class ComposedByHand:
    """An optimizer of torch with modifiers around it.

    `params` are the model's parameters. `weights` are the parameters of torch's optimizer, which
    are others if a modifier keeps the weights elsewhere.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: Sequence[str]) -> None:
        self.optimizer, self.names = optimizer, order_by_stage(names)
        self.weights = [weight for weight, _ in params_and_lrs(optimizer)]
        starts = [weight.detach().clone() for weight in self.weights]
        has_own_params = not {"master", "schedule_free"}.isdisjoint(names)
        self.params = [start.clone() for start in starts] if has_own_params else self.weights
        self.slow_weights, self.last_weights, self.averages, self.means = (
            [start.clone() for start in starts] for _ in range(4)
        )
        self.moves = [torch.zeros_like(start) for start in starts]
        self.accumulated: list[list[Tensor]] = []
        self.noise = _Noise(starts) if "gradient_noise" in names else None
        self.steps = 0
        self.largest_lrs, self.weight_sums = [0.0] * len(starts), [0.0] * len(starts)

    @torch.no_grad()
    def step(self) -> None:
        """Take a step, or skip it, or keep the gradients for a later step."""
        grads = [param.grad.clone() for param in self.params if param.grad is not None]
        noise = self.noise.draw() if self.noise else []
        if "skip_nonfinite" in self.names and not all(g.isfinite().all() for g in grads):
            return
        if "accumulate" in self.names:
            self.accumulated.append(grads)
            if len(self.accumulated) < 2:
                return
            grads = [torch.stack(each).mean(dim=0) for each in zip(*self.accumulated, strict=True)]
            self.accumulated = []
        self.steps += 1
        old_weights = [weight.detach().clone() for weight in self.weights]
        for weight, grad in zip(self.weights, self.modified_gradients(grads, noise), strict=True):
            weight.grad = grad
        self.optimizer.step()
        for index, old in enumerate(old_weights):
            self.update(index, old)

    def modified_gradients(self, grads: list[Tensor], noise: list[Tensor]) -> list[Tensor]:
        """Return the gradients after the modifiers that change them."""
        for name in self.names:
            if name == "gradient_noise":
                deviation = (0.5 / (1 + self.steps) ** 0.55) ** 0.5
                grads = [g + deviation * n for g, n in zip(grads, noise, strict=True)]
            elif name == "clip_norm":
                norm = torch.stack([g.norm() for g in grads]).norm()
                grads = [g * (1.0 / (norm + 1e-6)).clamp(max=1) for g in grads]
            elif name in GRADIENTS:
                pairs = zip(self.params, grads, strict=True)
                grads = [GRADIENTS[name](param.detach(), grad) for param, grad in pairs]
        return grads

    def update(self, index: int, old: Tensor) -> None:
        """Change the update of a weight, store the weight, and update its average."""
        weight, lr = [*params_and_lrs(self.optimizer)][index]
        assert weight.grad is not None
        u = weight - old
        for name in self.names:
            if name in UPDATES:
                u = UPDATES[name](old, weight.grad, u, lr)
            elif name == "lookahead" and self.steps % 3 == 0:
                self.slow_weights[index].lerp_(old + u, 0.4)
                u = self.slow_weights[index] - old
            elif name == "ema_nesterov":
                self.moves[index].lerp_(old + u - self.last_weights[index], 0.1)
                self.last_weights[index].copy_(old + u)
                u = old + u + 0.4 * self.moves[index] - old
        weight.copy_(old + u)
        self.store(index, weight, lr)
        if "ema" in self.names:
            is_first = self.steps == 1
            self.averages[index].lerp_(self.params[index].detach(), 1.0 if is_first else 0.1)

    def store(self, index: int, weight: Tensor, lr: float) -> None:
        """Compute the model's parameter from the weight, if a modifier keeps both."""
        if "master" in self.names:
            weight.copy_(weight.float())
            self.params[index].copy_(weight)
        if "schedule_free" in self.names:
            self.largest_lrs[index] = max(self.largest_lrs[index], lr)
            self.weight_sums[index] += self.largest_lrs[index] ** 2
            self.means[index].lerp_(weight, self.largest_lrs[index] ** 2 / self.weight_sums[index])
            self.params[index].copy_(0.2 * weight + 0.8 * self.means[index])


class _Noise:
    """The noise of gradient_noise. SGD with a learning rate of 1 subtracts it from zeros."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.params = [torch.zeros_like(each) for each in tensors]
        cls: Any = optgen.compose("sgd", catalogue.gradient_noise(1.0, 0.0))
        self.optimizer = cls(self.params, lr=1.0)

    def draw(self) -> list[Tensor]:
        """Return the noise of the next call."""
        for param in self.params:
            param.zero_()
            param.grad = torch.zeros_like(param)
        with optgen.use_lowering("forloop"):
            self.optimizer.step()
        return [-param for param in self.params]
