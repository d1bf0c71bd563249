# lowering: 'forloop'
# kind: 'wrong'
# message: 'the parameter is -0.25, expected -0.75 with an error of at most 3.1e-15, element 0 of 3, step 1, parameter 0'
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 133
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, w=state('key_w', init='eps'), r=state('key_r', init=-1, shape='row'), s=state('key_s', init='c'), m=state('key_m'), *, c=hyper(0.5), eps=hyper(0.25)):
    """Drawn by lot."""
    require(ndim(p) >= 2, '{shape}')
    h2 = r
    r = 0.5 * r
    m = m + where(g != 0, g, s)
    p = w + h2
