"""SOAP: Adam in the slowly changing eigenbasis of Shampoo's preconditioners.

The first step only finds the bases. A parameter without rows and columns gets Adam, which
begins in the second step, too. A parameter with more than two axes is a batch of matrices. A side
above `max_precond_dim` is not rotated; if both are, this is Adam. If the limit is raised later, the
side is rotated from the next step on.

The momentum `exp_avg` lies in the bases, as in the authors' code since December 2024. It is rotated
when they change. So do not lower the limit in a run: both moments stay in bases that are not used
any more.
"""

from optgen.spec import (
    col_sum,
    cols,
    descending,
    eigenvectors,
    factored,
    fresh,
    hyper,
    lerp,
    optimizer,
    qr,
    rows,
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
    L=state(
        "gram_left",
        shape=("rows", "rows"),
        dtype="at_least_float32",
        when="rows(p) <= max_precond_dim",
    ),
    R=state(
        "gram_right",
        shape=("cols", "cols"),
        dtype="at_least_float32",
        when="cols(p) <= max_precond_dim",
    ),
    U=state(
        "basis_left",
        shape=("rows", "rows"),
        dtype="at_least_float32",
        when="rows(p) <= max_precond_dim",
    ),
    W=state(
        "basis_right",
        shape=("cols", "cols"),
        dtype="at_least_float32",
        when="cols(p) <= max_precond_dim",
    ),
    *,
    lr=hyper(3e-3, ge=0),
    betas=hyper((0.95, 0.95), ge=0, lt=1),
    shampoo_beta=hyper(-1.0, ge=-1, le=1, about="Decay of the covariances (betas[1] if below 0)"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.01, ge=0),
    precondition_frequency=hyper(10, ge=1, whole=True),
    max_precond_dim=hyper(
        10000, ge=1, whole=True, about="Largest number of rows or columns that gets a basis"
    ),
):
    """Adam in the eigenbasis of the gradient's covariances (Vyas et al., 2024)."""
    beta1, beta2 = betas
    k = t - 1
    if shampoo_beta >= 0:
        decay = shampoo_beta
    else:
        decay = beta2

    if k > 0:
        x = g
        if factored(p):
            if rows(p) <= max_precond_dim and not fresh(U):
                x = transpose(U) @ x
            if cols(p) <= max_precond_dim and not fresh(W):
                x = x @ W
        m = beta1 * m + (1 - beta1) * x
        v = beta2 * v + (1 - beta2) * x**2
        u = m / (sqrt(v) + eps)
        if factored(p):
            if rows(p) <= max_precond_dim and not fresh(U):
                u = U @ u
            if cols(p) <= max_precond_dim and not fresh(W):
                u = u @ transpose(W)
        p = p - lr * sqrt(1 - beta2**k) / (1 - beta1**k) * u
        p = p - lr * weight_decay * p

    if factored(p):
        if rows(p) <= max_precond_dim:
            L = lerp(L, g @ transpose(g), 1 - decay)
            if fresh(U):
                U = eigenvectors(L)
                m = transpose(U) @ m
            elif k % precondition_frequency == 0:
                X = L @ U
                S = descending(transpose(col_sum(U * X)))  # the diagonal of U.T @ L @ U
                m, v = U @ m, S @ v
                U = qr(X @ transpose(S))
                m = transpose(U) @ m
        if cols(p) <= max_precond_dim:
            R = lerp(R, transpose(g) @ g, 1 - decay)
            if fresh(W):
                W = eigenvectors(R)
                m = m @ W
            elif k % precondition_frequency == 0:
                Y = R @ W
                T = descending(transpose(col_sum(W * Y)))
                m, v = m @ transpose(W), v @ transpose(T)
                W = qr(Y @ transpose(T))
                m = m @ W
