"""One-sided Shampoo: only columns have a preconditioner. It is applied to the momentum.

A root that is kept (`every` above 1) does not know the directions of later gradients, and enlarges
them up to 1,000 times. So an update is then at most as long as that of an orthogonal matrix.
"""

from optgen.spec import (
    cols,
    hyper,
    inverse_root,
    lerp,
    minimum,
    ndim,
    norm,
    optimizer,
    require,
    rows,
    sqrt,
    state,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2503.10537")
def OneSidedShampoo(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    R=state("gram", shape=("cols", "cols"), dtype="at_least_float32"),
    B=state("root", shape=("cols", "cols"), dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.99), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    every=hyper(5, ge=1, whole=True),
):
    """Momentum times the inverse root of the columns' covariance (Xie et al., 2025)."""
    require(ndim(p) >= 2, "OneSidedShampoo takes matrices, not the shape {shape}")
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    R = lerp(R, transpose(g) @ g, 1 - beta2)
    if (t - 1) % every == 0:
        B = inverse_root(R / (1 - beta2**t), 2, eps)
    u = m @ B / (1 - beta1**t)
    if every > 1:
        longest = sqrt(minimum(rows(p), cols(p)))
        u = u * minimum(1, longest / norm(u, over="matrix"))
    p = p - lr * u
