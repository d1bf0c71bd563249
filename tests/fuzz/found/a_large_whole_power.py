# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'key_m is 1.392028370239287e+44, expected 1.3920283702393132e+44 with an error of at most 2.6e+30, element 961 of 15000, train, 0'
# hypers: {'betas': (0.9, 0.5)}
# shapes: ((3, 5000),)
# dtype: 'float64'
# seed: 918
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
    f=state("key_f", init="lr", shape="scalar"),
    v=state("key_v", init=1.5),
    m=state("key_m", init=1e-3),
    *,
    lr=hyper(0.1, ge=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
):
    """Drawn by lot."""
    beta1, beta2 = betas
    f = exp(-rms(v))
    f = lerp(f, max_abs(v), 0.25)
    v = beta1 * v + (1 - beta1) * ceil((v + beta1) / 0.5)
    m = m * beta2 + (m / (abs(atan2(p, v)) + 0.5))
    p = p - lr * ((p / (abs(v) + 0.5)) - (p / (abs(g) + 0.5))) / (sqrt(abs((g * betas[1]))) + 0.5)


@Random.train
def to_train(m, p, /):
    m = m**(-17) + 0.125 * p


@Random.eval
def to_eval(m, p, v, /, *, lr, betas):
    x = ((lr * betas[1]) - (v / (betas[1]**2 + 1)))
    v = m + 0.125 * p - x
