# lowering: 'foreach'
# kind: 'crashed'
# message: 'IndexError'
# hypers: {}
# shapes: ((3, 2),)
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), *, poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(factored(p), 'matrices')
    z = orthogonalize(g, poly, 1, 0.01)
    y = orthogonalize(lerp(2, z, 0.5), poly, 1, 0.01)
    m = m + y
    p = p - m
