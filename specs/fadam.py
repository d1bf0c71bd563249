"""FAdam, as lessw2020/FAdam_PyTorch has it, with square roots and without clipping of eps."""

from optgen.spec import hyper, maximum, minimum, optimizer, rms, sqrt, state, where


def debiased_beta(beta, t):
    """Return the decay in step t of a running mean that begins without bias."""
    return (beta**t - beta) / (beta**t - 1)


@optimizer(paper="https://arxiv.org/abs/2405.12807")
def FAdam(
    w,
    g,
    t,
    /,
    m=state("momentum"),
    f=state("fim", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    weight_decay=hyper(0.1, ge=0),
    clip=hyper(1.0, gt=0, about="The largest root mean square of a natural gradient"),
    eps=hyper(1e-8, gt=0),
    eps_2=hyper(1e-2, gt=0, about="Largest eps, as a share of the gradient's root mean square"),
):
    """Momentum of natural gradients by the diagonal of Fisher's matrix (Hwang, 2024)."""
    beta1, beta2 = betas[0], debiased_beta(betas[1], t)

    f = beta2 * f + (1 - beta2) * g**2
    root = sqrt(f) + minimum(eps, eps_2 * rms(g))
    u = where(root > 0, g / root, 0)
    u = u / maximum(1, rms(u) / clip)
    m = beta1 * m + (1 - beta1) * u
    decay = where(root > 0, w / root, 0)
    decay = decay / maximum(1, rms(decay) / clip)
    w = w - lr * (m + weight_decay * decay)
