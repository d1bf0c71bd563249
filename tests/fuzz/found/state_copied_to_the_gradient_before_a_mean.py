# lowering: 'forloop'
# kind: 'wrong'
# message: 'the parameter is 0.0, expected -2.0 with an error of at most 1.3e-13, element 0 of 17, step 1, parameter 0'
# hypers: {}
# shapes: ((17,),)
# dtype: 'float64'
# seed: 326
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, m=state('key_m')):
    """Drawn by lot."""
    m = where(2 < m, g, 2)
    p = m
    m = 2 * m
    g = p
    m = where(lerp(g, m, t), mean(g) - mean(m), m)
    p = m
