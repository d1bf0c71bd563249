"""Row-wise Adagrad, in torchrec's form: Adagrad with one accumulator for each row of a table."""

from optgen.spec import hyper, ndim, optimizer, require, row_mean, sqrt, state


@optimizer(
    paper="https://arxiv.org/abs/1906.00091",
    gradient="rows",
    keywords=(
        "lr",
        "lr_decay",
        "weight_decay",
        "initial_accumulator_value",
        "eps",
        "*",
        "maximize",
    ),
    group=(
        "lr",
        "lr_decay",
        "eps",
        "weight_decay",
        "initial_accumulator_value",
        "maximize",
    ),
    compute_dtype="param",
)
def RowWiseAdagrad(
    p,
    g,
    t,
    /,
    s=state("sum", shape="row", init="initial_accumulator_value", eager=True),
    *,
    lr=hyper(1e-2, ge=0, tensor="always"),
    lr_decay=hyper(0, ge=0, about="Number that each step adds to the divisor of lr"),
    weight_decay=hyper(0, ge=0, rows=False),
    initial_accumulator_value=hyper(0, ge=0, about="Start value of the sum, in every group"),
    eps=hyper(1e-10, ge=0),
):
    """Adagrad with one accumulator for each row of an embedding table (Naumov et al., 2019)."""
    require(ndim(p) == 2, "RowWiseAdagrad takes tables: parameters of two axes, not {shape}")

    if weight_decay:
        g = g + weight_decay * p

    s = s + row_mean(g**2)

    rate = lr / (1 + (t - 1) * lr_decay)
    p = p - rate * g / (sqrt(s) + eps)
