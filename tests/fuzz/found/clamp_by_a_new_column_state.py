# lowering: 'load'
# kind: 'crashed'
# message: 'VerifyError: `key_k` is stored in 0 phases (verify.py)'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 876
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, k=state('key_k', shape='col'), v=state('key_v')):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    k = col_sum(v)
    v = clamp(p, 1, k)
    p = g
