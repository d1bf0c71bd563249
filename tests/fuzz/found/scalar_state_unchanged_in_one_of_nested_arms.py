# lowering: 'load'
# kind: 'crashed'
# message: 'StaleReadError: read after version 2 was written: key_s.1 (verify_versions.py)'
# hypers: {}
# shapes: ((2, 1, 2),)
# dtype: 'float64'
# seed: 497
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, k=state('key_k'), s=state('key_s', shape='scalar'), *, c=hyper(0.5)):
    """Drawn by lot."""
    u = g
    if factored(p):
        if c:
            s = 2
        else:
            k = lerp(k, col_sum(u), 0.25)
    if s:
        p, g = (g, p)
    else:
        s = c
