# lowering: 'foreach'
# kind: 'crashed'
# message: "UnboundLocalError: cannot access local variable 'betas_1_sq' where it is not associated with a value (foreach.py)"
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 851
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), *, betas=hyper((0.5, 0.75))):
    """Drawn by lot."""
    if numel(p):
        m = lerp(max_abs(m), g / (betas[1] ** 2 + 1), 0.5)
    else:
        p = g / 2
    p = p - betas[1] ** 2
