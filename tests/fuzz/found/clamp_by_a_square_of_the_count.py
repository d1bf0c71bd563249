# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'the parameter is 1.6e-322, expected 0.0325350986890209 with an error of at most 2.9e-17, element 0 of 6, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 218
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, m=state('key_m')):
    """Drawn by lot."""
    if ndim(p) == 1:
        m = m + t ** 2
    g, p = (clamp(g, g, t ** 2), g)
    p = g
