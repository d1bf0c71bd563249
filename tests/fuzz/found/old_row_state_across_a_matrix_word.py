# lowering: 'load'
# kind: 'crashed'
# message: 'CyclicDependencyError:  (levels.py)'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 423
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, r=state('key_r', shape='row'), *, poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    x = g
    g = r * g
    r = 0.5 * r
    _j = mean(g)
    x = orthogonalize(lerp(x, r, p), poly, 1, 0.01)
    p = g
