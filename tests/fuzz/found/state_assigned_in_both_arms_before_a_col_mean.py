# lowering: 'load'
# kind: 'crashed'
# message: 'VerifyError: undefined on this path: key_m.3 (paths.py)'
# hypers: {}
# shapes: ((2, 1, 2),)
# dtype: 'float64'
# seed: 800
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), r=state('key_r'), *, fa=flag(False)):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    if fa:
        m = g
        p = m
    else:
        m = g
    r = r + col_mean(m)
