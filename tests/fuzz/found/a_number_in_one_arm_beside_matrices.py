# lowering: 'fused_triton'
# kind: 'crashed'
# message: "AttributeError: 'int' object has no attribute 'tensors' (tensor_lists.py)"
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 888
# viewed: False
from optgen.spec import *

@optimizer(compute_dtype='param', paper='https://example.org')
def Random(p, g, /, m=state('key_m'), R=state('key_R', shape=('cols', 'cols'), when='factored')):
    """Drawn by lot."""
    d = norm(m)
    if fresh(m):
        pass
    else:
        m = g
        d = 2
    if factored(p):
        R = lerp(R, 2, 0.25)
    p = minimum(d, p)
