# lowering: 'fused_cpu'
# kind: 'crashed'
# message: 'the process ended with -11'
# hypers: {'fa': False}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 0
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(
    p, g, /,
    k=state("key_k", init=1, shape="col", when="fa"),
    r=state("key_r", init=1, shape="row", when="fa"),
    *,
    lr=hyper(0.1, ge=0),
    fa=flag(False),
):
    """Drawn by lot."""
    require(factored(p), "{shape}")
    if fa:
        k = k / (1 + row_mean(k) ** 2 + max_abs(r))
        r = 0.5 * r + col_mean(r) / (1 + norm(k))
    j = col_mean(g)
    if fa:
        k = 0.5 * k
        r = 0.5 * r
    p = p - lr * g * j
