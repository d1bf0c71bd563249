# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'the parameter is 125.44156174289436, expected 125.28685615133165 with an error of at most 3.8e-11, element 5200 of 10400, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 40, 130), (1500, 1, 2))
# dtype: 'float64'
# seed: 3
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(
    p,
    g,
    /,
    r=state("key_r", init=0.5, shape="row"),
    k=state("key_k", init=0.5, shape="col"),
    q=state("key_q", init=0.5, shape="row"),
):
    """Drawn by lot."""
    require(ndim(p) > 1, "{shape}")
    q = q + row_mean(g)
    k = k + col_mean(g)
    e = mean(q)
    r = r * e + max_abs(g)
    h = max_abs(r) + sum(k)
    p = p - r * g + h
