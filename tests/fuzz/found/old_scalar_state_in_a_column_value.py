# lowering: 'functional'
# kind: 'wrong'
# message: 'the parameter is 0.3062305466274244, expected 0.0 with an error of at most 4.0e-16, element 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 780
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, f=state('key_f', shape='scalar'), q=state('key_q')):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    j2 = col_mean(g) * f
    q = g
    f = max_abs(g)
    p = j2 * q
