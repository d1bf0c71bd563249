# lowering: 'forloop'
# kind: 'crashed'
# message: "UnboundLocalError: cannot access local variable 'z' where it is not associated with a value (unfused.py)"
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 883
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, r=state('key_r'), m=state('key_m'), s=state('key_s', shape='scalar'), *, poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    z = p
    s = 2
    if factored(p):
        _x = m
        m = z
        z = p
        g = where(z > r, z, col_sum(g))
        _y = orthogonalize(z, poly, 1, 0.01)
    r = g
    p = g * s
