# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'the parameter 1.1438349806156773 for 0.9167957122694596, which rounding moves by 5.7e-15, at 0 of 6, step 1, parameter 0'
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
