# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'the parameter is -0.7370527921204224, expected 0.771830168325419 with an error of at most 1.6e-13, element 0 of 3, step 1, parameter 0'
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 520
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, *, poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(ndim(p) >= 2, '{shape}')
    x = g
    g = p
    p = x
    x = orthogonalize(g, poly, 2, 0.01)
    p = where(p > g, g, x)
