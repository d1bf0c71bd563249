"""Rose for vectors and matrices. The author computes in float64, and rounds bfloat16 at random.

A range is a largest minus a smallest number. Maxima are of magnitudes here, so they are taken of
numbers that are all at least 0: x + m and m - x, where m is the largest magnitude. Their sum is
2 m more than the range, and exactly 2 m if all numbers are equal. The mean is subtracted first,
since m should be no larger than the range. A `where` makes the difference one number, which is not
taken apart in sums.
"""

from optgen.spec import (
    abs,
    col_mean,
    cols,
    factored,
    flag,
    hyper,
    max_abs,
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


def deviation(g, middle):
    return where(abs(g) >= 0, g - middle, g)


def bounded(p, g, lr):
    x = deviation(g, mean(g))
    m = max_abs(x)
    above, below = x + m, m - x
    r = max_abs(above) + max_abs(below) - 2 * m
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
            x = deviation(g, row_mean(g))
            m = row_max_abs(x)
            above, below = x + m, m - x
            r = row_max_abs(above) + row_max_abs(below) - 2 * m
            if stabilize:
                middle = col_mean(r)
                spread = sqrt(col_mean((r - middle) ** 2))
                trust = where(middle > 0, middle / (spread + middle), 0)
                r = middle + trust * (r - middle)
            if centralize:
                g = x
            p = p - lr * g / where(r == 0, 1, r)
    else:
        p = bounded(p, g, lr)
