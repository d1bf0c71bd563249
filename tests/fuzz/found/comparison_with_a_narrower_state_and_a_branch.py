# lowering: 'forloop'
# kind: 'wrong'
# message: 'the parameter is 0.0, expected 0.20028477546474 with an error of at most 9.6e-08, element 1 of 6, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 866
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, v=state('key_v', init='p', dtype='float32'), q=state('key_q')):
    """Drawn by lot."""
    big = v < p
    if t == 2:
        q = g
    u = g
    p = where(big, q, u)
