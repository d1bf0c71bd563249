# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'key_r is 0.0, expected 0.001 with an error of at most 8.9e-19, element 0 of 4, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 2, 3),)
# dtype: 'float64'
# seed: 760
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(
    p,
    g,
    /,
    m=state("key_m", init="eps"),
    r=state("key_r", init=0.001, shape="row"),
    *,
    eps=hyper(0.25),
    opt=hyper(None, optional=True),
):
    """Drawn by lot."""
    require(ndim(p) >= 2, "{shape}")
    if opt:
        p = g
        if opt:
            _h = r
        else:
            r = row_mean(m)
