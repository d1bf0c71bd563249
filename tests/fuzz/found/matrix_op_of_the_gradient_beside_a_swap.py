# lowering: 'load'
# kind: 'crashed'
# message: 'StaleReadError: read after version -1 was written: u.1'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 861
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, k=state('key_k'), v=state('key_v'), m=state('key_m'), *, opt=hyper(None, optional=True), poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(ndim(p) >= 2, 'matrices')
    _d = k
    u = v
    g = orthogonalize(u, poly, 2, 0.01)
    if opt is None:
        pass
    else:
        v = u
        u = p
    k = g
    m = m + u
    p = g
