from optgen.spec import fixed, hyper, optimizer


@optimizer(
    paper="https://arxiv.org/abs/1711.05101",
    base="Adam",
    keywords=(
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "amsgrad",
        "*",
        "maximize",
        "foreach",
        "capturable",
        "differentiable",
        "fused",
    ),
)
def AdamW(
    p,
    g,
    t,
    /,
    *,
    weight_decay=hyper(1e-2, ge=0),
    decoupled_weight_decay=fixed(True),
):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019, Algorithm 2)."""
