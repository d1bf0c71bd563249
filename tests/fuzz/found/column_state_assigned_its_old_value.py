# lowering: 'load'
# kind: 'crashed'
# message: "VerifyError: stored are ['key_k', 'key_m', 'key_r'], assigned ['key_m', 'key_r', 'param', 'z', 'z_sum'] (verify.py)"
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 358
from optgen.spec import *
SCALE = 0.75

def turned(x, y):
    x, y = (y, x)
    return 0.5 * x - SCALE * y

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), r=state('key_r'), k=state('key_k', shape='col')):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    z = turned(p, g)
    j = k
    k = col_mean(p)
    k = j
    h = mean(z)
    p = g
    u = h - z
    m = m + p
    r = g * r
    p = u
