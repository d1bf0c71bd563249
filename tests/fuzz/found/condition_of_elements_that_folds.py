# lowering: 'forloop'
# kind: 'crashed'
# message: 'RuntimeError: where expected condition to be a boolean tensor, but got a tensor with dtype Double (forloop.py)'
# hypers: {}
# shapes: ((),)
# dtype: 'float64'
# seed: 422
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m')):
    """Drawn by lot."""
    low = factored(p) and 0.5 < m <= 2
    m = g
    p = where(low, g, g)
