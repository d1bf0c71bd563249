from optgen.spec import abs, hyper, max_abs, norm, optimizer, sqrt, state, where


@optimizer(paper="https://arxiv.org/abs/2502.17055")
def StableSPAM(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    a=state("m_norm_t", shape="scalar"),
    b=state("v_norm_t", shape="scalar"),
    top=state("m_max_t", shape="scalar"),
    k=state("inner_step", shape="scalar"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    gamma1=hyper(0.7, ge=0, lt=1, about="Decay of the mean norm of gradients"),
    gamma2=hyper(0.9, ge=0, lt=1, about="Decay of the mean square of norms"),
    theta=hyper(0.999, ge=0, lt=1, about="Decay of the mean largest element"),
    update_proj_gap=hyper(1000, gt=0, about="Steps between two resets of the moments"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam on gradients with clipped spikes and normalised norms (Huang et al., 2025)."""
    beta1, beta2 = betas
    if t % update_proj_gap == 0:
        k = 1
        m = 0 * m
        v = 0 * v
    else:
        k = k + 1
    p = p - lr * weight_decay * p

    largest = max_abs(g)
    top = theta * top + (1 - theta) * largest
    limit = top / (1 - theta**t)
    g = where(abs(g) > limit, g / largest * limit, g)

    size = norm(g)
    a = gamma1 * a + (1 - gamma1) * size
    b = gamma2 * b + (1 - gamma2) * size**2
    ratio = a / (1 - gamma1**t) / (sqrt(b / (1 - gamma2**t)) + eps)
    g = g / where(size > 0, size, 1) * ratio

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    p = p - lr * m / (1 - beta1**k) / (sqrt(v / (1 - beta2**k)) + eps)
