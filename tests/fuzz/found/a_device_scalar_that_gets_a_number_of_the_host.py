# lowering: 'functional'
# kind: 'wrong'
# message: 'key_f is 0.5, expected 0.125 with an error of at most 1.1e-16, element 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 684
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), f2=state('key_f2', shape='scalar'), f=state('key_f', init=0.5, shape='scalar')):
    """Drawn by lot."""
    f2 = sum(m)
    m = g
    f2 = f
    f = 0.25 * f2
    p = g
