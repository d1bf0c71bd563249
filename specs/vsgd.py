"""VSGD, as generativeai-tue/vsgd has it."""

from optgen.spec import hyper, lerp, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2404.06549")
def VSGD(
    p,
    g,
    t,
    /,
    m=state("mug", dtype="at_least_float32"),
    b=state("bg", dtype="at_least_float32"),
    b_hat=state("bhg", dtype="at_least_float32"),
    *,
    lr=hyper(0.1, ge=0),
    ghattg=hyper(30.0, ge=0, about="Ratio of the prior variances of a gradient and of its change"),
    ps=hyper(1e-8, ge=0, about="Strength of the prior"),
    tau1=hyper(0.81, ge=0, about="Power of the step count in the weight of a new variance"),
    tau2=hyper(0.9, ge=0, about="The same for the variance of gradients"),
    weight_decay=hyper(0.0, ge=0),
    eps=hyper(1e-8, ge=0),
):
    """The gradient's mean and noise, estimated by variational inference (Chen et al., 2024)."""
    a = 2 * ps + 1 + 1e-4
    prior, prior_hat = 2 * ps, 2 * ghattg * ps
    if t == 1:
        s, s_hat = prior / (a - 1) + 0 * g, prior_hat / (a - 1) + 0 * g
    else:
        s, s_hat = b / a, b_hat / a

    p = p - lr * weight_decay * p
    m_old = m
    m = (s_hat * m_old + s * g) / (s + s_hat)
    variance = s * s_hat / (s + s_hat)
    b = lerp(b, prior + variance + (m - m_old) ** 2, t**-tau1)
    b_hat = lerp(b_hat, prior_hat + variance + (g - m) ** 2, t**-tau2)
    p = p - lr * m / (sqrt(m**2 + variance) + eps)
