"""LAMB, as NVIDIA and timm have it, without their clipping by the norm of all gradients.

As in both, parameters without weight decay take Adam's steps, unless `always_adapt`.
"""

from optgen.spec import flag, hyper, minimum, norm, optimizer, sqrt, state, where


@optimizer(paper="https://arxiv.org/abs/1904.00962")
def LAMB(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-6, ge=0),
    weight_decay=hyper(0.01, ge=0),
    trust_clip=flag(False, about="Limit the ratio of the weights' norm to the step's norm to 1"),
    always_adapt=flag(False, about="Scale steps of parameters without weight decay, too"),
):
    """Adam with steps relative to the norm of weights, for large batches (You et al., 2019)."""
    beta1, beta2 = betas

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)

    u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p
    if weight_decay or always_adapt:
        trust = where(norm(p) > 0 and norm(u) > 0, norm(p) / norm(u), 1)
        if trust_clip:
            trust = minimum(trust, 1)
        u = trust * u
    p = p - lr * u
