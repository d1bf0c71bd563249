# lowering: 'foreach'
# kind: 'crashed'
# message: "NameError: name 'step_size_block' is not defined (foreach.py)"
# hypers: {}
# shapes: ((5,), (3, 1))
# dtype: 'float64'
# seed: 734
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
    s=state("key_s", init=0.5, shape="scalar"),
    q=state("key_q", init="c", shape="scalar"),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    eps=hyper(0.25, gt=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
):
    """Drawn by lot."""
    beta1, _beta2 = betas
    p = clamp(p, -abs(((q / s) * mean(g))), abs(((q / s) * mean(g))))
    s = 0.5 * s + 0.25 * (1)
    e = lerp(q, rms(g), 0.5)
    q = beta1 * q + (1 - beta1) * abs(eps)
    p = p - lr * ((clamp(g, -abs(e), abs(e)) / (sqrt((p / (c**2 + 1))**2) + 0.25)) / (1 + abs(e))) * s
