# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'key_m is 0.0, expected -0.33202690342797075 with an error of at most 1.5e-15, element 0 of 4, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 1, 2),)
# dtype: 'float64'
# seed: 760
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(p, g, /, m=state("key_m")):
    """Drawn by lot."""
    require(ndim(p) >= 2, "{shape}")
    m = where(g != 0, row_sum(g), row_mean(m * col_mean(m)))
    p = g
