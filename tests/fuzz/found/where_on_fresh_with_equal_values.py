# lowering: 'load'
# kind: 'crashed'
# message: "KeyError: 'key_k_before' (signature.py)"
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 35
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, k=state('key_k', shape='col')):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    y = where(fresh(k), g, g)
    k = 2 * k
    p = y
