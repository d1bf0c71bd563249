# lowering: 'load'
# kind: 'crashed'
# message: "KeyError: 'holds' (plan.py)"
# hypers: {}
# shapes: ((2, 3), (2, 3))
# dtype: 'float64'
# seed: 690
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
    p, g, /,
    k=state("key_k", init=0, shape="col"),
    s=state("key_s", init=1e-3, shape="scalar"),
    m=state("key_m", init=0),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
):
    """Drawn by lot."""
    require(ndim(p) > 1, "{shape}")
    _beta1, beta2 = betas
    k = 0.5 * k
    y = where(clamp(row_mean(g), -1, 1) > k, (-g), lerp(mean(p), p, 0.5))**2
    m = sqrt(y**2)
    u = (-(1)**clamp(abs(y)**(abs(c) + 0.5), -2, 2))
    s = lerp(s, sign(s), 0.25)
    m = 0.5 * m + 0.25 * turned(blend((u * y), (u - col_mean(g))), (u * y))
    p = where(((beta2 > beta2) or (c)), (s + c), clamp(g, -1, lr**2)) * s
