# lowering: 'fused_triton'
# kind: 'crashed'
# message: 'UnfitError: sweep4 takes real or complex numbers, not torch.bool (elementwise.py)'
# hypers: {}
# shapes: ((2, 2, 3),)
# dtype: 'float64'
# seed: 918
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), H0=state('key_H0', shape=('rows', 'rank')), I0=state('key_I0', shape=('rank', 'cols')), *, rank=hyper(2, ge=1)):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    big = mean(m) < 0.3
    m = g
    H0 = 0.5 * H0
    I0 = I0 + transpose(transpose(m) @ H0)
    p = where(big, g, g)
