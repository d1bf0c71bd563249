# lowering: 'load'
# kind: 'crashed'
# message: 'ValueError: max() arg is an empty sequence (passes.py)'
# hypers: {}
# shapes: ((5,), (2, 3), ())
# dtype: 'float64'
# seed: 0
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, v=state('key_v'), m=state('key_m'), *, poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    y = orthogonalize(v, poly, 2, 0.01)
    g = orthogonalize(m, poly, 2, 0.01)
    v = y
    m = g
    p = g
