"""AdaHessian, as amirgholami/adahessian has it.

The training loop makes the estimate of the Hessian's diagonal, because it needs a second backward
pass: `optimizer.step(hessian=[…])`. For convolutions the authors average the estimate over the
kernel.
"""

from optgen.spec import given, hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2006.00719")
def AdaHessian(
    p,
    g,
    t,
    d=given("hessian"),
    /,
    m=state("exp_avg"),
    v=state("exp_hessian_diag_sq", dtype="at_least_float32"),
    *,
    lr=hyper(0.15, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-4, ge=0),
    weight_decay=hyper(0, ge=0),
    hessian_power=hyper(1, ge=0, le=1),
):
    """Adam whose second moment averages squares of the Hessian's diagonal (Yao et al., 2020)."""
    beta1, beta2 = betas

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * d**2
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    u = m_hat / (sqrt(v_hat) ** hessian_power + eps)
    if weight_decay:
        u = u + weight_decay * p
    p = p - lr * u
