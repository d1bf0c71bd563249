"""AdEMAMix, as apple/ml-ademamix has it."""

from optgen.spec import hyper, log, optimizer, sqrt, state


def half_life(beta):
    """Return the half-life of a decay, in steps, minus one."""
    return log(0.5) / log(beta + 1e-8) - 1


@optimizer(paper="https://arxiv.org/abs/2409.03137")
def AdEMAMix(
    p,
    g,
    t,
    /,
    m=state("exp_avg_fast"),
    m_slow=state("exp_avg_slow", dtype="at_least_float32"),
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999, 0.9999), ge=0, lt=1),
    alpha=hyper(2.0, ge=0),
    beta3_warmup=hyper(None, optional=True, gt=0),
    alpha_warmup=hyper(None, optional=True, gt=0),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """AdamW with a second, slower running mean of gradients (Pagliardini et al., 2024)."""
    beta1, beta2, beta3 = betas

    alpha_now = alpha
    if alpha_warmup is not None and t < alpha_warmup:
        alpha_now = alpha * t / alpha_warmup
    if beta3_warmup is not None and t < beta3_warmup:
        progress = t / beta3_warmup
        interpolated = (1 - progress) * half_life(beta1) + progress * half_life(beta3)
        beta3 = 0.5 ** (1 / (interpolated + 1))

    m = beta1 * m + (1 - beta1) * g
    m_slow = beta3 * m_slow + (1 - beta3) * g
    v = beta2 * v + (1 - beta2) * g**2
    u = (m / (1 - beta1**t) + alpha_now * m_slow) / (sqrt(v / (1 - beta2**t)) + eps)
    p = p - lr * (u + weight_decay * p)
