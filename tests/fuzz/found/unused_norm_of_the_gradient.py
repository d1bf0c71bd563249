# lowering: 'fused_triton'
# kind: 'crashed'
# message: "TypeError: random_step() got multiple values for argument 'VECTOR' (fused_triton.py)"
# hypers: {'lr': 0.01, 'eps': 1.0, 'betas': (0.9, 0.5), 'maximize': True}
# shapes: ((2, 3), (17,))
# dtype: 'float64'
# seed: 366
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
    m=state("key_m", init=-1),
    *,
    lr=hyper(0.1, ge=0),
    eps=hyper(0.25, gt=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
):
    """Drawn by lot."""
    beta1, _beta2 = betas
    a = (eps / (2))
    m = beta1 * m + (1 - beta1) * sign(m) * sqrt(abs(m))
    _d = log(1 + norm(g))
    p = p - lr * (p * (1 + a))
