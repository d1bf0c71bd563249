"""SophiaG, as Liuhong99/Sophia has it.

The authors' `update_hessian` runs after a step, with gradients of sampled labels. Here the next
step gets the squares of these gradients, `optimizer.step(hessian=[…])`, averages them, and moves.
"""

from optgen.spec import abs, given, hyper, lerp, minimum, optimizer, sign, state


@optimizer(paper="https://arxiv.org/abs/2305.14342")
def Sophia(
    p,
    g,
    h_new=given("hessian"),
    /,
    m=state("exp_avg"),
    h=state("hessian"),
    *,
    lr=hyper(1e-4, ge=0),
    betas=hyper((0.965, 0.99), ge=0, lt=1),
    rho=hyper(0.04, ge=0),
    batch_size=hyper(5120, gt=0),
    weight_decay=hyper(0.1, ge=0),
):
    """Momentum divided by an estimate of the Hessian's diagonal, clipped (Liu et al., 2023)."""
    beta1, beta2 = betas

    if given(h_new):
        h = lerp(h, h_new, 1 - beta2)
    p = p - lr * weight_decay * p
    m = lerp(m, g, 1 - beta1)
    p = p - lr * sign(m) * minimum(abs(m) / (rho * batch_size * h + 1e-15), 1)
