# lowering: 'foreach'
# kind: 'crashed'
# message: "TypeError: full_like(): argument 'input' must be Tensor, not NoneType (forloop.py)"
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 586
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, w=state('key_w', when='not fb'), m=state('key_m'), v=state('key_v'), *, fb=flag(True), poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(factored(p), 'matrices')
    v = g
    z = orthogonalize(v, poly, 1, 0.01)
    if not fb:
        w = w + where(0.9 ** 2, z, m)
    m = lerp(2, m, 2)
    p = g
