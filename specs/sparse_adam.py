from optgen.spec import hyper, lerp, optimizer, sqrt, state


@optimizer(
    paper="https://arxiv.org/abs/1412.6980",
    gradient="sparse_only",
    sparse_hint=", please consider Adam instead",
    step="int",
    keywords=("lr", "betas", "eps", "maximize", "*"),
    group=("lr", "betas", "eps", "maximize"),
    compute_dtype="param",
)
def SparseAdam(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    *,
    lr=hyper(1e-3, gt=0, tensor="always"),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, gt=0),
):
    """Adam for sparse gradients: a step changes only the rows that the gradient holds."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    v = lerp(v, g**2, 1 - beta2)

    step_size = lr * sqrt(1 - beta2**t) / (1 - beta1**t)
    p = p - step_size * m / (sqrt(v) + eps)  # PyTorch: eps beside the uncorrected root
