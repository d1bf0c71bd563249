# lowering: 'functional'
# kind: 'wrong'
# message: 'the parameter is -0.18683769584665744, expected -1.1868376958466573 with an error of at most 1.8e-14, element 0 of 1, step 1, parameter 0'
# hypers: {'fb': False}
# shapes: ((),)
# dtype: 'float64'
# seed: 261
from optgen.spec import *

def blend(x, y):
    """Half of one and a part of the other."""
    half = 0.5 * x
    x = half + y
    return x - 0.25 * half

@optimizer(paper='https://example.org')
def Random(p, g, /, s=state('key_s', shape='scalar'), m=state('key_m'), *, fb=flag(True)):
    """Drawn by lot."""
    s = 2
    if not fb:
        m = blend(g, ---s)
    s = 1
    p = m
