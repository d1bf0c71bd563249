# lowering: 'forloop'
# kind: 'wrong'
# message: 'the parameter is -0.5891218617012092, expected -0.7378260036228499 with an error of at most 8.1e-15, element 0 of 6, step 1, parameter 0'
# hypers: {'lr': 0.1, 'c': 0.5, 'eps': 1.0, 'betas': (0.5, 0.75), 'opt': 0.5, 'fa': False, 'maximize': True}
# shapes: ((2, 3), (2, 1, 2))
# dtype: 'float64'
# seed: 442
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
    v=state("key_v", init=0),
    k=state("key_k", init=0, shape="col"),
    s=state("key_s", init=0.5, shape="scalar", dtype="float64"),
    m=state("key_m", init=0),
    r=state("key_r", init=0, shape="row"),
    q=state("key_q", init="lr", shape="scalar", dtype="float64"),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    eps=hyper(0.25, gt=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
    opt=hyper(None, optional=True),
    fa=flag(False),
):
    """Drawn by lot."""
    require(ndim(p) >= 2, "{shape}")
    beta1, beta2 = betas
    s = 0.5 * s + 0.25 * (abs((2)) + 0.5)**(-3)
    b = q
    a = (abs(t) % 2)
    x = g
    if (t > 1):
        _z = sqrt(abs((0 * minimum(g, s) + log(exp(clamp(g, -1, 1))))))
    elif (t % 2 == 0):
        r = 0.5 * r
        if (opt):
            _j = k
        else:
            if ((eps != (0 * 3)) and (opt is None)):
                _u = (clamp(x**-0, (v / (abs(p) + 0.5)), (v / (abs(p) + 0.5)) + 1) + turned(blend(m, q), sqrt(maximum(g, 0))))
                v = lerp(v, g, 1 - beta1)
                p = p * (1 - lr * c) - lr * sign(v)
                q = beta2
            v = beta2 * v + (1 - beta2) * g**2
            p = p - lr * g / (sqrt(abs(v)) + eps)
            p = sign((g + ((row_sum(x) / cols(p)) + row_mean(m)) * col_mean(x * r))) * sqrt(abs((g + ((row_sum(x) / cols(p)) + row_mean(m)) * col_mean(x * r))))
        g = abs(m)
    elif (not fa):
        m = -(-m) + g
        p = p - lr * m
    k = 0.5 * k + 0.25 * k
    p = p - lr * ((maximum((x / sqrt(1 + (row_sum(m) / cols(p))**2)), (1 - (2**0.5)**2)) * (1 + a)) * (1 + b)) * s
