# lowering: 'forloop'
# kind: 'wrong'
# message: 'the parameter is -0.08035464693165363, expected -0.0 with an error of at most 2.2e-308, element 0 of 6, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 558
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, s=state('key_s', init='c'), r=state('key_r'), v=state('key_v'), k=state('key_k'), m=state('key_m'), *, c=hyper(0.5)):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    m, p = (p, m)
    r = r + row_mean(p)
    v = v ** s
    k = g
    p = r * k
