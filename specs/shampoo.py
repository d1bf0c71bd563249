"""Shampoo as it was published. A parameter with more than two axes is a batch of matrices.

A parameter without rows and columns gets AdaGrad.

With roots of all gradients, an update is never longer than the root of its rank. Roots that are
kept (`update_freq` above 1) do not know the directions of later gradients, and enlarge them up to
1,000 times. So this bound is then part of the rule.
"""

from optgen.spec import (
    cols,
    factored,
    fresh,
    hyper,
    identity,
    inverse_root,
    minimum,
    norm,
    optimizer,
    rows,
    sqrt,
    state,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/1802.09568")
def Shampoo(
    p,
    g,
    t,
    /,
    L=state("gram_left", shape=("rows", "rows"), dtype="at_least_float32", when="factored"),
    R=state("gram_right", shape=("cols", "cols"), dtype="at_least_float32", when="factored"),
    A=state("root_left", shape=("rows", "rows"), dtype="at_least_float32", when="factored"),
    B=state("root_right", shape=("cols", "cols"), dtype="at_least_float32", when="factored"),
    s=state("sum", dtype="at_least_float32", when="not factored"),
    *,
    lr=hyper(1e-1, ge=0),
    eps=hyper(1e-4, ge=0),
    weight_decay=hyper(0.0, ge=0),
    update_freq=hyper(1, ge=1, whole=True),
):
    """Gradients between inverse fourth roots of their summed covariances (Gupta et al., 2018)."""
    if weight_decay:
        g = g + weight_decay * p

    if factored(p):
        if fresh(L):
            L = eps * identity(L)
            R = eps * identity(R)
        L = L + g @ transpose(g)
        R = R + transpose(g) @ g
        if (t - 1) % update_freq == 0:
            A = inverse_root(L, 4, 0)
            B = inverse_root(R, 4, 0)
        u = A @ g @ B
        if update_freq > 1:
            longest = sqrt(minimum(rows(p), cols(p)))
            u = u * minimum(1, longest / norm(u, over="matrix"))
    else:
        s = s + g**2
        u = g / sqrt(s + eps)
    p = p - lr * u
