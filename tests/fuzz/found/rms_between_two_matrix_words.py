# lowering: 'forloop'
# kind: 'wrong'
# message: 'the parameter is -0.2844163877928659, expected -0.6069644003870713 with an error of at most 3.8e-13, element 0 of 6, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 438
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), *, poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    y = orthogonalize(g, poly, 2, 0.01)
    y = y ** 2
    e = rms(y)
    _z = orthogonalize(y, poly, 1, 0.01)
    m = lerp(m, y, 0.25)
    p = e / g
