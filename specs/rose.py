"""Rose for vectors and matrices. The author computes in float64, and rounds bfloat16 at random.

A range is a largest minus a smallest number. Of numbers less their mean, one is not below 0 and one
not above it, so both are found by magnitude.
"""

from optgen.spec import (
    abs,
    col_mean,
    cols,
    factored,
    flag,
    hyper,
    max_abs,
    maximum,
    mean,
    minimum,
    ndim,
    numel,
    optimizer,
    require,
    row_max_abs,
    row_mean,
    sqrt,
    where,
)


def bounded(p, g, lr):
    x = g - mean(g)
    r = max_abs(maximum(x, 0)) + max_abs(minimum(x, 0))
    return p - lr * g / where(numel(p) > 1, r + 1, abs(g) + 1e-5)


@optimizer(paper="https://github.com/MatthewK78/Rose")
def Rose(
    p,
    g,
    /,
    *,
    lr=hyper(1e-3, ge=0),
    weight_decay=hyper(1e-4, ge=0),
    centralize=flag(True, about="Take the mean of each row from the gradient"),
    stabilize=flag(True, about="Blend ranges with their mean, the more the more they differ"),
):
    """Gradients divided by the range of their row, without a state (Kieren, 2026)."""
    require(ndim(p) <= 2, "Rose is for vectors and matrices, not for {shape}")
    p = p - minimum(lr * weight_decay, 1) * p
    if factored(p):
        if cols(p) == 1:
            p = bounded(p, g, lr)
        else:
            x = g - row_mean(g)
            r = row_max_abs(maximum(x, 0)) + row_max_abs(minimum(x, 0))
            if stabilize:
                middle = col_mean(r)
                spread = sqrt(col_mean((r - middle) ** 2))
                trust = where(middle > 0, middle / (spread + middle), 0)
                r = middle + trust * (r - middle)
            if centralize:
                g = x
            p = p - lr * g / where(r > 0, r, 1)
    else:
        p = bounded(p, g, lr)
