# lowering: 'functional'
# kind: 'crashed'
# message: "AttributeError: 'float' object has no attribute 'sum' (reductions.py)"
# hypers: {}
# shapes: ((2, 3), (3, 1))
# dtype: 'float64'
# seed: 811
from optgen.spec import *

SCALE = 0.75


def blend(x, y):
    """Half of one and a part of the other."""
    half = 0.5 * x
    x = half + y
    return x - 0.25 * half


def turned(x, y):
    x, y = y, x
    return 0.5 * x - SCALE * y


@optimizer(paper="https://example.org")
def Random(
    p, g, t, /,
    r=state("key_r", init=1.5, shape="row"),
    k=state("key_k", init=0, shape="col"),
    m=state("key_m", init=0),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
    pair=hyper((None, 0.5), optional=True),
):
    """Drawn by lot."""
    require(ndim(p) >= 2, "{shape}")
    beta1, _beta2 = betas
    m = lerp(m, g, 1 - beta1)
    m = blend(g, where((pair[0] is None), (m * m), (m / ((0 * 3)**2 + 1))))
    j = maximum(k, col_sum(m))
    g = where(m == 0, maximum((g + r * col_mean(m)), r), norm(where((not (-SCALE) > (0.125)), c, m)))
    h = row_sum(p - p)
    h = row_mean(g * j)
    j2 = abs(j)
    r = 0.5 * r + 0.25 * row_mean(g)
    k = beta1 * k + (1 - beta1) * j
    p = (p - lr * ((m + h) * j2)) % 1.5
