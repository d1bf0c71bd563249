# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'the parameter is 1.1438349806156773, expected 0.9167957122694596 with an error of at most 5.7e-15, element 0 of 6, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 3
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(
    p,
    g,
    /,
    r=state("key_r", init=0.5, shape="row"),
    q=state("key_q", init=0.5, shape="row"),
):
    """Drawn by lot."""
    require(ndim(p) > 1, "{shape}")
    q = q + row_mean(g)
    e = mean(q)
    f = r * e
    r = r + 1
    p = p - f * g
