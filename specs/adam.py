from optgen.spec import flag, hyper, maximum, optimizer, sqrt, state


@optimizer(
    paper="https://arxiv.org/abs/1412.6980",
    sparse_hint=", please consider SparseAdam instead",
    keywords=(
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "amsgrad",
        "*",
        "foreach",
        "maximize",
        "capturable",
        "differentiable",
        "fused",
        "decoupled_weight_decay",
    ),
    group=(
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "amsgrad",
        "maximize",
        "foreach",
        "capturable",
        "differentiable",
        "fused",
        "decoupled_weight_decay",
    ),
    compute_dtype="param",
)
def Adam(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", role="second_moment"),
    v_max=state("max_exp_avg_sq", when="amsgrad"),
    *,
    lr=hyper(1e-3, ge=0, tensor="capturable"),
    betas=hyper((0.9, 0.999), ge=0, lt=1, tensor="capturable"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0, ge=0),
    amsgrad=flag(False, about="Divide by the largest second moment so far, not by the present one"),
    decoupled_weight_decay=flag(
        False, about="Shrink the parameter itself, as AdamW does, not through the gradient"
    ),
):
    """Adaptive moment estimation (Kingma & Ba, 2015; AMSGrad: Reddi et al., 2018)."""
    beta1, beta2 = betas

    if weight_decay:
        if decoupled_weight_decay:
            p = p - lr * weight_decay * p
        else:
            g = g + weight_decay * p

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2

    m_hat = m / (1 - beta1**t)
    if amsgrad:
        v_max = maximum(v_max, v)  # PyTorch: before bias correction
        v_hat = v_max / (1 - beta2**t)
    else:
        v_hat = v / (1 - beta2**t)

    p = p - lr * m_hat / (sqrt(v_hat) + eps)
