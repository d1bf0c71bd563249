# lowering: 'load'
# kind: 'crashed'
# message: "VerifyError: stored are ['key_m', 'param'], assigned ['param'] (verify.py)"
# hypers: {}
# shapes: ((5000, 3),)
# dtype: 'float64'
# seed: 390
# viewed: False
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(
    p, g, t, /,
    m=state("key_m", init="eps"),
    v=state("key_v", init=0, when="factored"),
    *,
    lr=hyper(0.1, ge=0),
    eps=hyper(0.25, gt=0),
):
    """Drawn by lot."""
    x = m
    m = m * 0.5 + p
    big = g > mean(g, over="all")
    if factored(p):
        m, x = x, m
        v = 0.5 * v + lr / (1 + m**2)
    p = where(big, m, g)
