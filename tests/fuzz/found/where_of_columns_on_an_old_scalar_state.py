# lowering: 'forloop'
# kind: 'wrong'
# message: 'the parameter is 2.0, expected 0.0 with an error of at most 2.2e-308, element 0 of 12, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 2, 3),)
# dtype: 'float64'
# seed: 590
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, q=state('key_q', shape='scalar'), s=state('key_s', shape='scalar'), k=state('key_k', shape='col')):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    j2 = where(q <= 2, k, col_mean(g))
    g = clamp(s, g, 2)
    s = 2
    q = 2
    k = col_mean(g)
    p = g * j2
