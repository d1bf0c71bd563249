# lowering: 'fused_triton'
# kind: 'crashed'
# message: "SyntaxError: duplicate argument 'xs' in function definition (fused_triton.py, line 147) (__init__.py)"
# hypers: {}
# shapes: ((2, 1, 2),)
# dtype: 'float64'
# seed: 219
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), *, poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(ndim(p) >= 2, '{shape}')
    x = orthogonalize(m, poly, 2, 0.01)
    x = orthogonalize(x, poly, 2, 0.01)
    m = g
    p = x
