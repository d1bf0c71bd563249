# lowering: 'fused_cpu'
# kind: 'does not compile'
# message: 'static assertion failed: four bits a stream in 64'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 771
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, q=state('key_q', shape='scalar'), v=state('key_v'), s=state('key_s', shape='scalar'), m=state('key_m'), r=state('key_r'), k=state('key_k'), *, poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    m = g * m
    q, s = (s, q)
    y = orthogonalize(orthogonalize(g, poly, 1, 0.01), poly, 1, 0.5)
    z = orthogonalize(orthogonalize(v, poly, 1, 0.01), poly, 1, 0.5)
    v = g
    r = g * r
    k = k + y * z
    p = g
