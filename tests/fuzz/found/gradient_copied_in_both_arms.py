# lowering: 'load'
# kind: 'crashed'
# message: 'StaleReadError: read after version 4 was written: grad.2 (verify_versions.py)'
# hypers: {}
# shapes: ((5,),)
# dtype: 'float64'
# seed: 706
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), *, betas=hyper((0.5, 0.75))):
    """Drawn by lot."""
    beta1, _beta2 = betas
    low = g < g
    e = rms(m)
    if beta1:
        m, g = (g, --g)
    p = where(low, where(g < e, m, g), g)
