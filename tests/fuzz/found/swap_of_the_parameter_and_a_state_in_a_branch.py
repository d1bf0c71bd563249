# lowering: 'fused_triton'
# kind: 'crashed'
# message: 'InterpreterError: UnboundLocalError("cannot access local variable \'key_m\' where it is not associated with a value") (fused_triton.py)'
# hypers: {'lr': 0.1, 'c': 0.5, 'eps': 1.0, 'betas': (0.5, 0.75), 'mode': 'b', 'maximize': False}
# shapes: ((2, 3), (17,))
# dtype: 'float64'
# seed: 743
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
    v=state("key_v", init=0, dtype="float32"),
    s=state("key_s", init=0.5, shape="scalar", dtype="torch"),
    r=state("key_r", init=1e-3, shape="row", when="factored"),
    q=state("key_q", init=1.5, shape="scalar", dtype="float64"),
    m=state("key_m", init="eps"),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    eps=hyper(0.25, gt=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
    mode=choice("a", "b", None),
):
    """Drawn by lot."""
    beta1, beta2 = betas
    if (beta1 > t):
        v = lerp(v, g, 1 - beta1)
        p = p * (1 - lr * c) - lr * sign(v)
        p, m = m, p
        _z = (1 * ((s - p) + -(-(-eps))))
    elif (mode == "b"):
        _low = (not ((mode != "a") or m > t))
    m = (abs((s - g)) - (m / (abs((-g)) / (abs(maximum(eps, beta2)) + 0.5) + 1)))
    e = (mean(v) - mean(m))
    if factored(p):
        g = g - row_sum(p)
    m = (0 * maximum((2 + 0*g), (c % (abs(g) + 0.5))) + m)
    s = beta1 * s + (1 - beta1) * lr
    if factored(p):
        r = 0.5 * r + 0.25 * (betas[1] * row_mean(g))
    q = beta1 * q + (1 - beta1) * lr
    p = p - lr * (m % (1 + abs(e)))**2 * q
