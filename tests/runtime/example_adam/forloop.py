"""Adam, one parameter at a time: the lowering a person reads."""

from itertools import zip_longest
from math import sqrt

import torch
from torch import Tensor

from optgen.runtime import scalars
from optgen.runtime.scalars import advance, advance_one
from optgen.runtime.slices import slices


def update(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    *,
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    amsgrad: bool,
    decoupled_weight_decay: bool,
    maximize: bool,
) -> None:
    """Update one bucket in place."""
    beta1, beta2 = betas
    step = advance(state_steps)
    step_size = lr / (1 - beta1**step)
    bias_correction2_sqrt = sqrt(1 - beta2**step)

    for param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq in slices(
        params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs
    ):
        if maximize:
            # g = -g
            grad = -grad
        if decoupled_weight_decay:
            # p = p - lr * weight_decay * p
            param.mul_(1 - lr * weight_decay)
        elif weight_decay:
            # g = g + weight_decay * p
            grad = grad.add(param, alpha=weight_decay)
        # m = beta1 * m + (1 - beta1) * g
        exp_avg.lerp_(grad, 1 - beta1)
        # v = beta2 * v + (1 - beta2) * g**2
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if amsgrad:
            # v_max = maximum(v_max, v)
            exp_avg_sq = torch.maximum(max_exp_avg_sq, exp_avg_sq, out=max_exp_avg_sq)
        # p = p - lr * m_hat / (sqrt(v_hat) + eps)
        denom = exp_avg_sq.sqrt().div_(bias_correction2_sqrt).add_(eps)
        param.addcdiv_(exp_avg, denom, value=-step_size)


def update_functional(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    *,
    lr: float | Tensor,
    betas: tuple[float | Tensor, float | Tensor],
    eps: float | Tensor,
    weight_decay: float | Tensor,
    amsgrad: bool,
    decoupled_weight_decay: bool,
    maximize: bool,
    capturable: bool,
) -> None:
    """Update one parameter after the other out of place, for autograd and graph capture."""
    beta1, beta2 = betas
    for param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, state_step in zip_longest(
        params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps
    ):
        step = advance_one(state_step, capturable)
        step_size = lr / (1 - beta1**step)
        bias_correction2_sqrt = scalars.sqrt(1 - beta2**step)
        p, g, m, v = param.clone(), grad, exp_avg.clone(), exp_avg_sq.clone()

        if maximize:
            # g = -g
            g = -g
        if decoupled_weight_decay:
            # p = p - lr * weight_decay * p
            p = p - lr * weight_decay * p
        else:
            # g = g + weight_decay * p
            g = g + weight_decay * p
        # m = beta1 * m + (1 - beta1) * g
        m = beta1 * m + (1 - beta1) * g
        # v = beta2 * v + (1 - beta2) * g**2
        v = beta2 * v + (1 - beta2) * g**2
        exp_avg.copy_(m)
        exp_avg_sq.copy_(v)
        if amsgrad:
            # v_max = maximum(v_max, v)
            v = torch.maximum(max_exp_avg_sq.clone(), v)
            max_exp_avg_sq.copy_(v)
        # p = p - lr * m_hat / (sqrt(v_hat) + eps)
        param.copy_(p - step_size * m / (v.sqrt() / bias_correction2_sqrt + eps))
