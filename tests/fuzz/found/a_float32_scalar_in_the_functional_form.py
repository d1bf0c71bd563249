# lowering: 'functional'
# kind: 'wrong'
# message: 'key_q is 1.100000023841858, expected 1.1000000014901161 with an error of at most 3.9e-15, element 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 554
# viewed: False
from optgen.spec import hyper, max_abs, optimizer, state, where

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), q=state('key_q', shape='scalar'), s=state('key_s', init='lr', shape='scalar', dtype='float32'), *, lr=hyper(0.1)):
    """Drawn by lot."""
    finite = 0 * max_abs(g, over='all') == 0
    q = where(finite, s + 1, q)
    _update = m
    m = g
    s = q
    p = g
