# lowering: 'load'
# kind: 'crashed'
# message: 'SyntaxError: invalid syntax (<unknown>, line 46) (emit.py)'
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 439
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), H0=state('key_H0'), w=state('key_w'), D0=state('key_D0', shape=('rank', 'rows')), *, rank=hyper(2, ge=1)):
    """Drawn by lot."""
    require(ndim(p) >= 2, '{shape}')
    m = g
    _H = H0
    D = D0
    H0 = g
    w = g
    D0 = 2 * D0
    p = transpose(D) @ D @ (w % m)
