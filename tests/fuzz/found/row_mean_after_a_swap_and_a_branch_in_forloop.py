# lowering: 'forloop'
# kind: 'wrong'
# message: 'the parameter is -0.22214575425295474, expected 0.0 with an error of at most 2.2e-308, element 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 939
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, r=state('key_r'), m=state('key_m'), v=state('key_v'), *, c=hyper(0.5)):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    m = v % row_sum(p)
    g, v = (v, g)
    if c:
        r = r + v
        _d = mean(g)
        m = g
    p = row_mean(m) - g
