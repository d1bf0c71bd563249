# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'key_m is 0.0, expected 0.43651505530349854 with an error of at most 2.6e-02, element 0 of 6, step 1, parameter 0'
# hypers: {'lr': 0.01, 'eps': 0.25, 'betas': (0.0, 0.25), 'maximize': False}
# shapes: ((2, 3), (17,))
# dtype: 'float64'
# seed: 497
# viewed: False
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
    p, g, t, hz=given("extra"), /,
    m=state("key_m", init=0, dtype="8bit", block=256, map="linear", min_elements=6),
    *,
    lr=hyper(0.1, ge=0),
    eps=hyper(0.25, gt=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
):
    """Drawn by lot."""
    _beta1, beta2 = betas
    if given(hz) or 0.5 > 0:
        g = 0.75 * p
    if given(hz):
        g = g - 0.5 * hz
    m = (t - g)
    m = (random((SCALE), 1) * m)
    m = maximum(m, g**2)
    p = p - lr * m / (sqrt(m**2) / (1 - beta2) + eps)
    p = g
    p = p - lr * atan2(g, m)
