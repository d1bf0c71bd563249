# lowering: 'oracle'
# kind: 'crashed'
# message: 'IndexError: Dimension out of range (expected to be in range of [-1, 0], but got -2) (words.py)'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 136
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, k=state('key_k'), s=state('key_s'), q=state('key_q', shape='scalar'), m=state('key_m')):
    """Drawn by lot."""
    m = g
    g = where(not not 2 > 2 and g != 0, 2, 2)
    _x = m
    if factored(p):
        k = k + col_sum(g)
    s = s + q
    q = 2
    p = g
