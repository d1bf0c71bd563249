# lowering: 'fused_cpu'
# kind: 'crashed'
# message: 'the process ended with -11'
# hypers: {}
# shapes: ((90, 70),)
# dtype: 'float64'
# seed: 0
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
    k=state("key_k", init=1.5, shape="col", when="c"),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
):
    """Drawn by lot."""
    require(factored(p), "{shape}")
    beta1, _beta2 = betas
    b = (t / t)
    h2 = row_mean(g**0)
    y = g
    p, g = g, p
    e = rms(h2 * col_mean(y))
    if c:
        k = beta1 * k + (1 - beta1) * floor(col_mean(y) * 4)
    p = p - lr * ((atan2(y, t) * (1 + b)) / (1 + abs(e)))
