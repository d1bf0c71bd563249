# lowering: 'load'
# kind: 'crashed'
# message: 'StaleReadError: read after version -1 was written: z.4'
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 846
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, m=state('key_m'), *, fb=flag(True)):
    """Drawn by lot."""
    m = p
    z = p
    if fb:
        if t:
            pass
        else:
            z = m % mean(z)
    else:
        m = g
    p = m
    p = p - z
