# lowering: 'load'
# kind: 'crashed'
# message: "IndentationError: expected an indented block after 'if' statement on line 96 (<unknown>, line 97) (emit.py)"
# hypers: {}
# shapes: ((17,), (1, 4))
# dtype: 'float64'
# seed: 569
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
    v=state("key_v", init=0.5),
    m=state("key_m", init=1e-3),
    *,
    lr=hyper(0.1, ge=0),
    eps=hyper(0.25, gt=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
    opt=hyper(None, optional=True),
):
    """Drawn by lot."""
    beta1, beta2 = betas
    z = where(v != 0, ((beta2 * p + (1 - beta2) * p) + clamp(g, -1, beta1**2)), (-(-(-m)) * (m - v)))
    if (not (not (not (not (ndim(p) == 1) or (opt is not None))) or (opt is None))):
        v = (sign(v) / ((betas[1] % 2)**2 + 1))
    m = lerp(m, ((m * beta1) - (g + eps)), 0.25)
    p = (1 - lr * 0.5) * p - (where(m == 0, lerp(m, m, betas[1]), sqrt(abs(z))) - z)
