"""SOAP: Adam in the slowly changing eigenbasis of Shampoo's preconditioners.

The first step only finds the bases. The mean of gradients is kept in the bases, as the authors keep
it between steps; so a step turns one matrix into them, not two. A parameter without rows and
columns gets Adam, which begins in the second step, too. A parameter with more than two axes is a
batch of matrices, of any size.
"""

from optgen.spec import (
    col_sum,
    descending,
    eigenvectors,
    factored,
    hyper,
    lerp,
    optimizer,
    qr,
    sqrt,
    state,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2409.11321")
def SOAP(
    p,
    g,
    t,
    /,
    m=state("exp_avg", dtype="at_least_float32"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    L=state("gram_left", shape=("rows", "rows"), dtype="at_least_float32", when="factored"),
    R=state("gram_right", shape=("cols", "cols"), dtype="at_least_float32", when="factored"),
    U=state("basis_left", shape=("rows", "rows"), dtype="at_least_float32", when="factored"),
    W=state("basis_right", shape=("cols", "cols"), dtype="at_least_float32", when="factored"),
    *,
    lr=hyper(3e-3, ge=0),
    betas=hyper((0.95, 0.95), ge=0, lt=1),
    shampoo_beta=hyper(-1.0, ge=-1, le=1, about="Decay of the covariances (betas[1] if below 0)"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.01, ge=0),
    precondition_frequency=hyper(10, ge=1, whole=True),
):
    """Adam in the eigenbasis of the gradient's covariances (Vyas et al., 2024)."""
    beta1, beta2 = betas
    k = t - 1
    if shampoo_beta >= 0:
        decay = shampoo_beta
    else:
        decay = beta2

    if k > 0:
        if factored(p):
            x = transpose(U) @ g @ W
            m = beta1 * m + (1 - beta1) * x
            v = beta2 * v + (1 - beta2) * x**2
            u = U @ (m / (sqrt(v) + eps)) @ transpose(W)
        else:
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g**2
            u = m / (sqrt(v) + eps)
        p = p - lr * sqrt(1 - beta2**k) / (1 - beta1**k) * u
        p = p - lr * weight_decay * p

    if factored(p):
        L = lerp(L, g @ transpose(g), 1 - decay)
        R = lerp(R, transpose(g) @ g, 1 - decay)
        if k == 0:
            U = eigenvectors(L)
            W = eigenvectors(R)
        elif k % precondition_frequency == 0:
            X = L @ U
            Y = R @ W
            S = descending(transpose(col_sum(U * X)))  # the diagonal of U.T @ L @ U
            T = descending(transpose(col_sum(W * Y)))
            v = S @ v @ transpose(T)
            mean = U @ m @ transpose(W)
            U = qr(X @ transpose(S))
            W = qr(Y @ transpose(T))
            m = transpose(U) @ mean @ W
