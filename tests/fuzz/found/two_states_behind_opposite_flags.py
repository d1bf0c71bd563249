# lowering: 'foreach'
# kind: 'crashed'
# message: ''
# hypers: {}
# shapes: ((3, 2),)
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, w=state('key_w', when='not fb'), v=state('key_v', when='fb'), *, fb=flag(True), poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(factored(p), 'matrices')
    z = orthogonalize(g, poly, 1, 0.01)
    p = g
    if not fb:
        w = w + lerp(2, z, 0.5)
    else:
        v = lerp(2, v, 0.5) + z
