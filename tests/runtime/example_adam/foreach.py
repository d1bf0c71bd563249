"""Adam through torch's list operations: few calls for many tensors."""

from math import sqrt

import torch
from torch import Tensor

from optgen.runtime.scalars import advance
from optgen.runtime.slices import cuts


def update(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    *,
    lr: float,
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

    for param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq in cuts(
        params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs
    ):
        if maximize:
            # g = -g
            grad = torch._foreach_neg(grad)
        if decoupled_weight_decay:
            # p = p - lr * weight_decay * p
            torch._foreach_mul_(param, 1 - lr * weight_decay)
        elif weight_decay:
            # g = g + weight_decay * p
            grad = torch._foreach_add(grad, param, alpha=weight_decay)
        # m = beta1 * m + (1 - beta1) * g
        torch._foreach_lerp_(exp_avg, grad, 1 - beta1)
        # v = beta2 * v + (1 - beta2) * g**2
        torch._foreach_mul_(exp_avg_sq, beta2)
        torch._foreach_addcmul_(exp_avg_sq, grad, grad, 1 - beta2)
        if amsgrad:
            # v_max = maximum(v_max, v)
            torch._foreach_maximum_(max_exp_avg_sq, exp_avg_sq)
            exp_avg_sq = max_exp_avg_sq
        # p = p - lr * m_hat / (sqrt(v_hat) + eps), with eps and lr scaled by sqrt(1 - beta2**t)
        denom = torch._foreach_sqrt(exp_avg_sq)
        torch._foreach_add_(denom, eps * bias_correction2_sqrt)
        torch._foreach_addcdiv_(param, exp_avg, denom, -step_size * bias_correction2_sqrt)
