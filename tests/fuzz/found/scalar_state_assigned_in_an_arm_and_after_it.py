# lowering: 'load'
# kind: 'crashed'
# message: 'StaleReadError: read after version 2 was written: key_s (verify_versions.py)'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 115
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, q=state('key_q', shape='scalar'), w=state('key_w'), s=state('key_s', shape='scalar'), m=state('key_m'), k=state('key_k')):
    """Drawn by lot."""
    if s:
        w = g
    else:
        m = m + g
        s = 2
    m = clamp(g, g, s)
    s = q
    q = 2
    if factored(p):
        k = k + col_mean(w)
    p = g
