# lowering: 'foreach'
# kind: 'wrong'
# message: 'key_m is -0.6796875, expected -0.6822617902381697 with an error of at most 2.4e-06, element 0 of 17, eval, 0'
# hypers: {}
# shapes: ((17,),)
# dtype: 'bfloat16'
# seed: 569
# viewed: False
from optgen.spec import abs, atan2, clamp, given, hyper, lerp, maximum, mean, minimum, optimizer, sign, sqrt, state, tanh, where


SCALE = 0.75


def blend(x, y):
    """Half of one and a part of the other."""
    half = 0.5 * x
    x = half + y
    return x - 0.25 * half


def turned(x, y):
    x, y = (y, x)
    return 0.5 * x - SCALE * y


@optimizer(paper='https://example.org', zero_grad=True)
def Random(
    p, g, t, hz=given('extra'), /,
    m=state('key_m', init=1.5, dtype='float32'),
    v=state('key_v', init=0, dtype='float32'),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
):
    """Drawn by lot."""
    gradient = g

    # Random
    beta1, beta2 = betas
    if given(hz) or 0.5 > 0:
        g = 0.75 * atan2(lerp(g, g, c), p ** 2)
    if given(hz):
        g = g - 0.5 * hz
    a2 = minimum(lr, lr)
    b = c
    x = v
    if t <= 2:
        v, x = (g - m, abs(m))
    elif not b > 1.5 or lr != SCALE:
        m = m * beta2 + SCALE ** clamp(m, -2, 2)
        m = 0.5 * m + 0.25 * (m * m)
    elif c != 0.9:
        a2 = b
        v = lerp(v, g, 1 - beta1)
        m = p
    m = clamp(x, -1, a2 ** 2)
    if 0.5 < 2:
        v = sign(g)
        v = 0.9 * x
        _a = sqrt(abs(lr))
    elif t - 1 > 0.5:
        m = m * beta2 + x
        v = beta2 * v + (1 - beta2) * g ** 2
    update = -(lr * abs(m))

    # cautious
    kept = where(update * gradient < 0, 1, 0)
    update = update * kept / maximum(mean(kept), 0.001)
    p = p + update

    # zero_grad


@Random.train
def to_train(m, p, /, *, lr):
    x = 0.9 * blend(p, lr)
    p = p * (1 - lr ** 2) + 0.125 * m - x


@Random.eval
def to_eval(m, p, /, *, betas):
    x = -where(m <= m, m, p)
    m = tanh(p / abs(betas[1]))
    p = m + 0.125 * p - x
