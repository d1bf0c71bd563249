# lowering: 'foreach'
# kind: 'wrong'
# message: 'the parameter is 0.34101746443974806, expected 0.461757942600024 with an error of at most 9.2e-15, element 0 of 12, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 2, 3), (17,))
# dtype: 'float64'
# seed: 662
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m')):
    """Drawn by lot."""
    if factored(p):
        pass
    else:
        m = g ** mean(g)
    _e = norm(m, over='all')
    d = rms(g, over='group')
    p = d / g
