# lowering: 'fused_cpu'
# kind: 'does not compile'
# message: '‘param_sum’ was not declared in this scope; did you mean ‘params’?'
# hypers: {}
# shapes: ((2, 2, 3),)
# dtype: 'float64'
# seed: 303
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, w=state('key_w'), s=state('key_s', init='lr'), m=state('key_m'), *, lr=hyper(0.1), poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(ndim(p) >= 2, '{shape}')
    w = where(mean(p), w, 0)
    _d = mean(w)
    if t:
        w, g = (g, w)
    else:
        m = lerp(m, row_mean(w), s)
    g = orthogonalize(m, poly, 2, 0.01, dtype='parameter')
    p = w
