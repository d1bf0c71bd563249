# lowering: 'load'
# kind: 'crashed'
# message: 'VerifyError: read after version 1 was written: param (paths.py)'
# hypers: {}
# shapes: ((5,), (2, 3), ())
# dtype: 'float64'
# seed: 0
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, k=state('key_k', shape='col'), v=state('key_v'), m=state('key_m'), r=state('key_r')):
    """Drawn by lot."""
    require(ndim(p) >= 2, '{shape}')
    _j = v
    k = col_sum(p)
    k = 0.5 * k
    v = g
    m = g
    r = r + m
    p = g
