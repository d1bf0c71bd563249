# lowering: 'foreach'
# kind: 'wrong'
# message: 'key_f is 0.0010000000474974513, expected 0.001 with an error of at most 8.9e-19, element 0 of 1, step 1, parameter 0'
# hypers: {'lr': 0.01, 'c': 0.0, 'betas': (0.9, 0.5), 'mode': None, 'maximize': True}
# shapes: ((2, 3), (1, 4))
# dtype: 'bfloat16'
# seed: 995
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
    f=state("key_f", init=1e-3, shape="scalar"),
    f2=state("key_f2", init=0, shape="scalar"),
    r=state("key_r", init=1.5, shape="row"),
    s=state("key_s", init="lr", shape="scalar"),
    k=state("key_k", init=0, shape="col"),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
    mode=choice("a", "b", None),
):
    """Drawn by lot."""
    require(factored(p), "{shape}")
    beta1, beta2 = betas
    e = f
    s = beta1
    z = g
    g = ((transpose(((p @ transpose(g)) + identity((p @ transpose(g))))) @ (r @ k)) + where(not (s > 0.7), (0.9), 0))
    if (t <= 2):
        _x = where(z < g, (abs(g) + 0.5)**-0, 0)
        f2 = e
    elif (fresh(f)):
        f = mean(col_rms(z))
    elif ((not ((c) and (beta1 != (0.1)))) or (mode is None)):
        _a = ((ceil(SCALE))**0 - lr)
        _b = (5 % 3)
    f2 = beta1 * f2 + (1 - beta1) * e
    r = r * beta2 + row_mean(g**0)
    k = beta1 * k + (1 - beta1) * (col_norm(z) - col_max_abs(z))
    p = p - lr * (-(abs(z) + 0.5)**(0)) * s
