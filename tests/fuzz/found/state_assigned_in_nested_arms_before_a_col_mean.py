# lowering: 'load'
# kind: 'crashed'
# message: 'VerifyError: read after version -1 was written: key_m.4 (paths.py)'
# hypers: {}
# shapes: ((2, 1, 2),)
# dtype: 'float64'
# seed: 800
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), r=state('key_r'), *, opt=hyper(None, optional=True), fa=flag(False)):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    if fa:
        if opt:
            m = g
            p = m
    else:
        m = g
    r = r + col_mean(m)
