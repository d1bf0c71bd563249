"""Apply each modifier by hand, around the steps of an optimizer of torch."""

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

    def before(self, param: Tensor, lr: float) -> None:
        """Change a parameter or its gradient before the step."""

    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        """Change a parameter after the step. `old` is the parameter before the step."""

    @torch.no_grad()
    def step(self) -> None:
        for param, lr in params_and_lrs(self.optimizer):
            self.before(param, lr)
        olds = [param.detach().clone() for param in self.params]
        self.optimizer.step()
        for (param, lr), old in zip(params_and_lrs(self.optimizer), olds, strict=True):
            self.after(param, lr, old)


def centralize(param: Tensor) -> None:
    """Subtract the mean over all axes but the first from a gradient."""
    assert param.grad is not None
    if param.ndim > 1:
        axes = tuple(range(1, param.ndim))
        param.grad.sub_(param.grad.mean(dim=axes, keepdim=True))


class Centralize(ByHand):
    def before(self, param: Tensor, lr: float) -> None:
        centralize(param)


class ClipValue(ByHand):
    def step(self) -> None:
        clip_grad_value_(self.params, 0.3)
        super().step()


class ClipTensorNorm(ByHand):
    def before(self, param: Tensor, lr: float) -> None:
        clip_grad_norm_(param, 0.5)


class ClipNorm(ByHand):
    def step(self) -> None:
        clip_grad_norm_(self.params, 1.0)
        super().step()


def unit_norm(value: Tensor) -> Tensor:
    """Return the norm of each output's weights, or of a whole vector."""
    axes = tuple(range(1, value.ndim)) or (0,)
    return value.square().sum(dim=axes, keepdim=True).sqrt()


class AdaptiveClip(ByHand):
    """Adaptive gradient clipping with the authors' units: all axes but the first."""

    def before(self, param: Tensor, lr: float) -> None:
        assert param.grad is not None
        largest = 0.1 * unit_norm(param).clamp(min=1e-3)
        size = unit_norm(param.grad)
        clipped = param.grad * largest / size.clamp(min=1e-6)
        param.grad.copy_(torch.where(size > largest, clipped, param.grad))


class CoupledDecay(ByHand):
    def before(self, param: Tensor, lr: float) -> None:
        assert param.grad is not None
        param.grad.add_(param, alpha=0.1)


class DecoupledDecay(ByHand):
    def before(self, param: Tensor, lr: float) -> None:
        param.mul_(1 - lr * 0.1)


class DecayAfter(ByHand):
    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        param.mul_(1 - lr * 0.1)


class FixedDecay(ByHand):
    def before(self, param: Tensor, lr: float) -> None:
        param.mul_(1 - 0.01)


class CorrectedDecay(ByHand):
    """The decay of AdamC, scaled by the ratio of the learning rate to the largest one."""

    def before(self, param: Tensor, lr: float) -> None:
        param.mul_(1 - lr * (lr / 0.1) * 0.2)


class CautiousDecay(ByHand):
    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        moved_outwards = (param - old) * old > 0
        param.sub_(lr * 0.1 * old.masked_fill(moved_outwards, 0))


class ProximalDecay(ByHand):
    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        param.div_(1 + lr * 0.1)


def mask_step(param: Tensor, old: Tensor) -> None:
    """Mask a step as C-Optim does, which divides the mask by its mean."""
    assert param.grad is not None
    mask = ((old - param) * param.grad > 0).to(param.dtype)
    mask.div_(mask.mean().clamp_(min=1e-3))
    param.copy_(old - (old - param) * mask)


class Cautious(ByHand):
    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        mask_step(param, old)


class Grams(ByHand):
    """Each element of the step keeps its size and gets the sign of the negative gradient."""

    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        assert param.grad is not None
        param.copy_(old - (old - param).abs().copysign(param.grad))


def scale_step(param: Tensor, lr: float, old: Tensor) -> None:
    """Scale a step to the norm of the weights times the learning rate, as in LAMB and LARS."""
    direction = (old - param) / lr
    ratio = (torch.linalg.norm(old) / torch.linalg.norm(direction)).item()
    param.copy_(old - lr * ratio * direction)


class TrustRatio(ByHand):
    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        scale_step(param, lr, old)


class UpdateFloor(ByHand):
    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        move = param - old
        small = 2.0 * lr * torch.linalg.norm(old) / torch.linalg.norm(move)
        param.copy_(old + move * small.clamp(min=1))


class Lars(ByHand):
    """The gradient is scaled to the norm of the weights, before the momentum takes it."""

    def before(self, param: Tensor, lr: float) -> None:
        assert param.grad is not None
        param.grad.mul_(torch.linalg.norm(param) / torch.linalg.norm(param.grad))


class Hyperball(ByHand):
    """A step of `lr` times the norm of the weights, projected back to the sphere of that norm."""

    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        radius = torch.linalg.norm(old)
        direction = torch.nn.functional.normalize(param - old, dim=None)
        moved = old + lr * radius * direction
        param.copy_(radius * moved / torch.linalg.norm(moved))


class Accumulate(ByHand):
    """Gradients are collected, and every third call is a step with their mean."""

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
            self.whole_step()

    def whole_step(self) -> None:
        super().step()


class SkipNonfinite(ByHand):
    def step(self) -> None:
        grads = [param.grad for param in self.params if param.grad is not None]
        if all(bool(grad.isfinite().all()) for grad in grads):
            super().step()


class Lookahead(ByHand):
    """Slow weights, which start as the weights and move 0.4 of the way to them every third step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.slow = [param.detach().clone() for param in self.params]
        self.steps = 0

    def step(self) -> None:
        super().step()
        self.steps += 1
        if self.steps % 3 == 0:
            for slow, param in zip(self.slow, self.params, strict=True):
                slow.add_(param.detach() - slow, alpha=0.4)
                param.data.copy_(slow)


class EmaNesterov(ByHand):
    """The loop of modded-nanogpt's track 3: each step begins at extrapolated weights."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.weights = [param.detach().clone() for param in self.params]
        self.moves = [torch.zeros_like(param) for param in self.params]

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        for param, last, move in zip(self.params, self.weights, self.moves, strict=True):
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

    The optimizer of torch moves z. The average of z is x, and gradients are taken at y, between
    them. The parameters are y, or x in eval mode.
    """

    momentum = 0.8

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.params = [param.detach().clone() for param, _ in params_and_lrs(optimizer)]
        self.averages = [param.clone() for param in self.params]
        self.largest = [0.0 for _ in self.params]
        self.totals = [0.0 for _ in self.params]

    @torch.no_grad()
    def step(self) -> None:
        for (z, _), y in zip(params_and_lrs(self.optimizer), self.params, strict=True):
            z.grad = y.grad
        self.optimizer.step()
        for index, (z, lr) in enumerate(params_and_lrs(self.optimizer)):
            self.largest[index] = max(self.largest[index], lr)
            weight = self.largest[index] ** 2
            self.totals[index] += weight
            share = weight / self.totals[index]
            x = (1 - share) * self.averages[index] + share * z
            self.averages[index] = x
            self.params[index].copy_((1 - self.momentum) * z + self.momentum * x)


class ManyStages(Lookahead):
    """Modifiers of many stages, in the order of the stages."""

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

    def before(self, param: Tensor, lr: float) -> None:
        assert param.grad is not None
        param.grad.add_(param, alpha=0.1)

    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        mask_step(param, old)
        scale_step(param, lr, old)
        param.sub_(lr * 0.1 * old)


class MaskedLookahead(Lookahead):
    def after(self, param: Tensor, lr: float, old: Tensor) -> None:
        mask_step(param, old)


class AccumulateAndMore(Accumulate):
    """A mask, slow weights and an average, which change only at the steps, not at every call."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.masked_lookahead = MaskedLookahead(optimizer)
        self.ema = Ema(optimizer)

    def whole_step(self) -> None:
        self.masked_lookahead.step()
        self.ema.averaged.update_parameters(self.ema.model)
