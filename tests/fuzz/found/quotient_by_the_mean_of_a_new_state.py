# lowering: 'fused_cpu'
# kind: 'wrong'
# message: 'key_m is -inf, expected 1.0 with an error of at most 3.8e-06, element 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 712
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, v=state('key_v'), s=state('key_s', shape='scalar'), m=state('key_m'), *, eps=hyper(0.25)):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    if eps:
        v = p
        if ndim(p):
            pass
        else:
            p = v * col_sum(v)
    else:
        s = +2
    m = p / mean(v)
    p = where(v == 0, m, maximum(t, g)) * s
