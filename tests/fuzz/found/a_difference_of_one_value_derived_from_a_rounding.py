# lowering: 'load'
# kind: 'crashed'
# message: 'VerifyError: like terms that were not added up: [1 * y.1 + -1 * y.1] (verify_versions.py)'
# hypers: {}
# shapes: ((1,),)
# dtype: 'float64'
# seed: 881
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, r=state('key_r'), m=state('key_m')):
    """Drawn by lot."""
    m = g
    g = rounded(m)
    y = sqrt(g)
    if factored(p):
        r = lerp(r, row_norm(g), 0.25)
    p = y - y
