# lowering: 'forloop'
# kind: 'crashed'
# message: 'RuntimeError: masked_fill_ only supports boolean masks, but got mask with dtype double (forloop.py)'
# hypers: {}
# shapes: ((2, 2, 3),)
# dtype: 'float64'
# seed: 995
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, s=state('key_s', shape='scalar')):
    """Drawn by lot."""
    x = where(g >= 1, 2, -g)
    x = where(x > 0.125, g, g)
    s = 2
    p = x * s
