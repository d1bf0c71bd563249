# lowering: 'functional'
# kind: 'wrong'
# message: 'key_v -0.00011636363189801763 for 0.00013231290499583412, which rounding moves by 2.1e-18, at 0 of 12, step 1, parameter 0'
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
