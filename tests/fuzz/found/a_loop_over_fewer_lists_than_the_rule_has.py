# lowering: 'forloop'
# kind: 'wrong'
# message: 'key_m is 0.25, expected 0.140625 with an error of at most 8.8e-03, element 0 of 4, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 1, 2), (2, 3))
# dtype: 'float64'
# seed: 185
# viewed: False
from optgen.spec import abs, atan2, clamp, hyper, lerp, maximum, optimizer, round, sqrt, state, where


SCALE = 0.75


def blend(x, y):
    """Half of one and a part of the other."""
    half = 0.5 * x
    x = half + y
    return x - 0.25 * half


def turned(x, y):
    x, y = (y, x)
    return 0.5 * x - SCALE * y


@optimizer(paper='https://example.org')
def Random(
    p, g, t, /,
    m=state('key_m', init='eps', dtype='bfloat16'),
    v=state('key_v', init=0),
    low_precision=state('low_precision', init='p', dtype='bfloat16'),
    *,
    lr=hyper(0.1, ge=0),
    eps=hyper(0.25, gt=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
):
    """Drawn by lot."""

    # Random
    beta1, _beta2 = betas
    z = v / (sqrt(v ** 2) + 0.25)
    x = +m
    a2 = sqrt(4)
    z = where(z != 0, x, z)
    y = abs(m) ** (abs(2) + 0.5)
    v = clamp(p, -1, lr ** 2)
    g = atan2(g, m)
    m = beta1 * m + (1 - beta1) * y
    p = (p - lr * (sqrt(maximum(z, 0)) * (1 + a2))) % 1.5

    # low_precision_copy
    low_precision = p


@Random.train
def to_train(v, p, /):
    p = maximum(p, p) * (0.9 / 2) + 0.125 * v


@Random.eval
def to_eval(p, v, /, *, lr, eps):
    x = p
    p = lerp(eps, lr, SCALE) % (abs(round(p * 8) / 8) + 0.5)
    v = p + 0.125 * v - x
