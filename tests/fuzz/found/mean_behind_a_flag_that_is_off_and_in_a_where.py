# lowering: 'fused_cpu'
# kind: 'wrong'
# message: 'key_v is 0.0, expected 0.4661548965288254 with an error of at most 7.6e-15, element 0 of 4, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 549
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, w=state('key_w'), m=state('key_m'), v=state('key_v'), *, fa=flag(False)):
    """Drawn by lot."""
    if fa:
        w = w + mean(p)
    m = g
    v = v + where(m > 0.125, mean(p), 0)
    p = g
