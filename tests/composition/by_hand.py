"""Implement each modifier by hand, around the steps of an optimizer of torch."""

from __future__ import annotations

from typing import Any

import torch
from composition.training import params_and_lrs
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class ByHand:
    """An optimizer of torch; subclasses change parameters before and after its steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.params = [param for param, _ in params_and_lrs(optimizer)]

    def change_before(self, param: Tensor, lr: float) -> None:
        """Change a parameter or its gradient before the step."""

    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        """Change a parameter after the step. `old` is the parameter before the step."""

    @torch.no_grad()
    def step(self) -> None:
        for param, lr in params_and_lrs(self.optimizer):
            self.change_before(param, lr)
        old_params = [param.detach().clone() for param in self.params]
        self.optimizer.step()
        for (param, lr), old in zip(params_and_lrs(self.optimizer), old_params, strict=True):
            self.change_after(param, lr, old)


def centralize(param: Tensor) -> None:
    """Subtract the mean over all axes but the first from a gradient."""
    assert param.grad is not None
    if param.ndim > 1:
        axes = tuple(range(1, param.ndim))
        param.grad.sub_(param.grad.mean(dim=axes, keepdim=True))


class Centralize(ByHand):
    def change_before(self, param: Tensor, lr: float) -> None:
        centralize(param)


class ClipValue(ByHand):
    def step(self) -> None:
        clip_grad_value_(self.params, 0.3)
        super().step()


class ClipTensorNorm(ByHand):
    def change_before(self, param: Tensor, lr: float) -> None:
        clip_grad_norm_(param, 0.5)


class ClipNorm(ByHand):
    def step(self) -> None:
        clip_grad_norm_(self.params, 1.0)
        super().step()


def unitwise_norm(value: Tensor) -> Tensor:
    """Return the norm over all axes but the first. A vector has one norm."""
    axes = tuple(range(1, value.ndim)) or (0,)
    return value.square().sum(dim=axes, keepdim=True).sqrt()


class AdaptiveClip(ByHand):
    """Adaptive gradient clipping, with the norms of the authors' code."""

    def change_before(self, param: Tensor, lr: float) -> None:
        assert param.grad is not None
        max_norm = 0.1 * unitwise_norm(param).clamp(min=1e-3)
        norm = unitwise_norm(param.grad)
        clipped = param.grad * max_norm / norm.clamp(min=1e-6)
        param.grad.copy_(torch.where(norm > max_norm, clipped, param.grad))


class CoupledDecay(ByHand):
    def change_before(self, param: Tensor, lr: float) -> None:
        assert param.grad is not None
        param.grad.add_(param, alpha=0.1)


class DecoupledDecay(ByHand):
    def change_before(self, param: Tensor, lr: float) -> None:
        param.mul_(1 - lr * 0.1)


class DecayAfter(ByHand):
    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        param.mul_(1 - lr * 0.1)


class FixedDecay(ByHand):
    def change_before(self, param: Tensor, lr: float) -> None:
        param.mul_(1 - 0.01)


class CorrectedDecay(ByHand):
    """The decay of AdamC, scaled by the ratio of the learning rate to the largest one."""

    def change_before(self, param: Tensor, lr: float) -> None:
        param.mul_(1 - lr * (lr / 0.1) * 0.2)


class CautiousDecay(ByHand):
    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        moved_outwards = (param - old) * old > 0
        param.sub_(lr * 0.1 * old.masked_fill(moved_outwards, 0))


class ProximalDecay(ByHand):
    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        param.div_(1 + lr * 0.1)


def mask_step(param: Tensor, old: Tensor) -> None:
    """Mask a step as C-Optim does, which divides the mask by its mean."""
    assert param.grad is not None
    mask = ((old - param) * param.grad > 0).to(param.dtype)
    mask.div_(mask.mean().clamp_(min=1e-3))
    param.copy_(old - (old - param) * mask)


class Cautious(ByHand):
    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        mask_step(param, old)


class Grams(ByHand):
    """Each element of the step keeps its magnitude and gets the sign of the negative gradient."""

    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        assert param.grad is not None
        param.copy_(old - (old - param).abs().copysign(param.grad))


def scale_step(param: Tensor, lr: float, old: Tensor) -> None:
    """Scale a step to the norm of the weights times the learning rate, as in LAMB and LARS."""
    direction = (old - param) / lr
    ratio = (torch.linalg.norm(old) / torch.linalg.norm(direction)).item()
    param.copy_(old - lr * ratio * direction)


class TrustRatio(ByHand):
    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        scale_step(param, lr, old)


class UpdateFloor(ByHand):
    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        move = param - old
        factor = 2.0 * lr * torch.linalg.norm(old) / torch.linalg.norm(move)
        param.copy_(old + move * factor.clamp(min=1))


class Hyperball(ByHand):
    """A step of `lr` times the norm of the weights, projected back to the sphere of that norm."""

    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        radius = torch.linalg.norm(old)
        direction = torch.nn.functional.normalize(param - old, dim=None)
        moved = old + lr * radius * direction
        param.copy_(radius * moved / torch.linalg.norm(moved))


class Accumulate(ByHand):
    """Two calls keep gradients for later. Every third call is a step with the mean of three."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.accumulated: list[list[Tensor]] = []

    def step(self) -> None:
        self.accumulated.append(
            [param.grad.clone() for param in self.params if param.grad is not None]
        )
        if len(self.accumulated) == 3:
            for param, grads in zip(self.params, zip(*self.accumulated, strict=True), strict=True):
                param.grad = torch.stack(grads).mean(dim=0)
            self.accumulated = []
            self.step_with_mean()

    def step_with_mean(self) -> None:
        super().step()


class SkipNonfinite(ByHand):
    def step(self) -> None:
        grads = [param.grad for param in self.params if param.grad is not None]
        if all(bool(grad.isfinite().all()) for grad in grads):
            super().step()


class Lookahead(ByHand):
    """Every third step, slow weights move 0.4 of the way to the weights, which then equal them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.slow_weights = [param.detach().clone() for param in self.params]
        self.steps = 0

    def step(self) -> None:
        super().step()
        self.steps += 1
        if self.steps % 3 == 0:
            for slow, param in zip(self.slow_weights, self.params, strict=True):
                slow.add_(param.detach() - slow, alpha=0.4)
                param.data.copy_(slow)


class EmaNesterov(ByHand):
    """The loop of modded-nanogpt's track 3: each step begins at extrapolated weights."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.last_weights = [param.detach().clone() for param in self.params]
        self.moves = [torch.zeros_like(param) for param in self.params]

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        for param, last, move in zip(self.params, self.last_weights, self.moves, strict=True):
            move.mul_(0.9).add_(param - last, alpha=1 - 0.9)
            last.copy_(param)
            param.add_(move, alpha=0.4)


class Ema(ByHand):
    """torch's AveragedModel, updated after each step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.model = torch.nn.ParameterList(self.params)
        average = get_ema_multi_avg_fn(0.9)
        self.averaged: Any = AveragedModel(self.model, multi_avg_fn=average)

    def averages(self) -> list[Tensor]:
        return [param.detach() for param in self.averaged.module]

    def step(self) -> None:
        super().step()
        self.averaged.update_parameters(self.model)


class ScheduleFree:
    """Schedule-Free learning in the paper's three sequences.

    The optimizer of torch moves z. The average of z is x. Gradients are taken at y, between z and
    x. The parameters are y, or x in eval mode.
    """

    momentum = 0.8

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.params = [param.detach().clone() for param, _ in params_and_lrs(optimizer)]
        self.averages = [param.clone() for param in self.params]
        self.largest_lrs = [0.0 for _ in self.params]
        self.weight_sums = [0.0 for _ in self.params]

    @torch.no_grad()
    def step(self) -> None:
        for (z, _), y in zip(params_and_lrs(self.optimizer), self.params, strict=True):
            z.grad = y.grad
        self.optimizer.step()
        for index, (z, lr) in enumerate(params_and_lrs(self.optimizer)):
            self.largest_lrs[index] = max(self.largest_lrs[index], lr)
            weight = self.largest_lrs[index] ** 2
            self.weight_sums[index] += weight
            share = weight / self.weight_sums[index]
            x = (1 - share) * self.averages[index] + share * z
            self.averages[index] = x
            self.params[index].copy_((1 - self.momentum) * z + self.momentum * x)


class ManyStages(Lookahead):
    """One modifier or more of most stages, in the order of the stages."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.ema = Ema(optimizer)

    def averages(self) -> list[Tensor]:
        return self.ema.averages()

    def step(self) -> None:
        for param in self.params:
            centralize(param)
        clip_grad_value_(self.params, 0.3)
        clip_grad_norm_(self.params, 1.0)
        super().step()
        self.ema.averaged.update_parameters(self.ema.model)

    def change_before(self, param: Tensor, lr: float) -> None:
        assert param.grad is not None
        param.grad.add_(param, alpha=0.1)

    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        mask_step(param, old)
        scale_step(param, lr, old)
        param.sub_(lr * 0.1 * old)


class MaskedLookahead(Lookahead):
    def change_after(self, param: Tensor, lr: float, old: Tensor) -> None:
        mask_step(param, old)


class AccumulateMaskedLookahead(Accumulate):
    """A mask, slow weights and an average, which change only in every third call."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.masked_lookahead = MaskedLookahead(optimizer)
        self.ema = Ema(optimizer)

    def step_with_mean(self) -> None:
        self.masked_lookahead.step()
        self.ema.averaged.update_parameters(self.ema.model)
