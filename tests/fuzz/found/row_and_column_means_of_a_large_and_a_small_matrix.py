# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'the parameter is 0.47322987698116065, expected 0.4360813934362889 with an error of at most 3.9e-14, element 0 of 10400, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 40, 130), (2, 3))
# dtype: 'float64'
# seed: 3
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(
    p,
    g,
    /,
    w=state("key_w", init=-1),
    m=state("key_m", init=-1),
    k=state("key_k", init=0.5, shape="col"),
    v=state("key_v", init="p"),
):
    """Drawn by lot."""
    require(factored(p), "{shape}")
    y = (p - row_mean(m)) * g
    w = lerp(w, row_mean(y), 0.25)
    k = lerp(k, col_mean(y), 0.25)
    m = m + 1
    v = v + 1
    p = p - g * k
