# lowering: 'forloop'
# kind: 'wrong'
# message: 'key_m is 0.3359375, expected -0.10069444444444445 with an error of at most 1.9e-01, element 3 of 6, train, 0'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'bfloat16'
# seed: 348
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
    p, g, t, /,
    m=state("key_m", init=0.5),
    s=state("key_s", init=0, shape="scalar", dtype="float64"),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
):
    """Drawn by lot."""
    _beta1, beta2 = betas
    late_on = (not (t != (2)))
    b = ((s - c) / (1 + ndim(p)))
    d = betas[1]
    m = m * beta2 + (- -g / (((3) - (0.1))**2 + 1))
    s = lerp(s, c, 0.25)
    if late_on:
        g = where(-0.5 < g <= b, m, d)
    p = (1 - lr * 0.5) * p - ((g * (1 + b)) / (1 + abs(d))) * s


@Random.train
def to_train(m, p, /):
    m = (abs(m) / (sqrt(clamp(p, p, p + 1)**2) + 0.25)) + 0.125 * p


@Random.eval
def to_eval(m, p, /):
    m = (1 * (p - p)) + 0.125 * p + 0.125 * m
