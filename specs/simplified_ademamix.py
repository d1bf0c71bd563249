"""Simplified AdEMAMix, as DepenM/Simplified-AdEMAMix has it with its default flags."""

from optgen.spec import hyper, log, optimizer, sqrt, state


def half_life(beta):
    """Return the half-life of a decay, in steps, minus one."""
    return log(0.5) / log(beta + 1e-8) - 1


@optimizer(paper="https://arxiv.org/abs/2502.02431")
def SimplifiedAdEMAMix(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", role="second_moment"),
    *,
    lr=hyper(1e-4, ge=0),
    betas=hyper((0.99, 0.95), ge=0, lt=1),
    alpha=hyper(0.0, ge=0),
    beta1_warmup=hyper(None, optional=True, gt=0),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    min_beta1=hyper(0.9, ge=0, lt=1),
):
    """Adam's step with a sum of all gradients and a share of the new one (Morwani et al., 2025)."""
    beta1, beta2 = betas
    if beta1_warmup is not None and t < beta1_warmup:
        progress = t / beta1_warmup
        interpolated = (1 - progress) * half_life(min_beta1) + progress * half_life(beta1)
        beta1 = 0.5 ** (1 / (interpolated + 1))

    m = beta1 * m + g
    v = beta2 * v + (1 - beta2) * g**2
    u = (alpha * g + m) / (sqrt(v / (1 - beta2**t)) + eps)
    p = p - lr * (u + weight_decay * p)
