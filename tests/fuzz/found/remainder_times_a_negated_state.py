# lowering: 'functional'
# kind: 'wrong'
# message: 'key_v is -0.00011636363189801763, expected 0.00013231290499583412 with an error of at most 2.1e-18, element 0 of 12, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 2, 3),)
# dtype: 'float64'
# seed: 996
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, v=state('key_v', init=0.001), s=state('key_s', shape='scalar')):
    """Drawn by lot."""
    s = 2
    _x = s
    v = p % g * -v
    p = g
