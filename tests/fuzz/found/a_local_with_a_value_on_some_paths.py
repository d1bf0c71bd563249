# lowering: 'load'
# kind: 'crashed'
# message: 'VerifyError: undefined on this path: key_k_2_2.2 (verify_reads.py)'
# hypers: {}
# shapes: ((2, 1, 2),)
# dtype: 'float64'
# seed: 558
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, q=state('key_q', shape='scalar'), v=state('key_v', dtype='8bit'), s=state('key_s', shape='scalar'), k=state('key_k', shape='col', when='not fb'), *, lr=hyper(0.1), fb=flag(True)):
    """Drawn by lot."""
    require(ndim(p) >= 2, '{shape}')
    if t:
        pass
    elif not fb:
        k = col_sum(g)
    v = g
    p = v
    s = q
    q = 2
    if lr:
        if not fb:
            k = k + 2
    else:
        _e = s
