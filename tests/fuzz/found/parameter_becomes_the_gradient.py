# lowering: 'load'
# kind: 'crashed'
# message: 'ValueError: not enough values to unpack (expected 1, got 0) (forloop.py)'
# hypers: {}
# shapes: ((2, 2, 3),)
# dtype: 'float64'
# seed: 663
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /):
    """Drawn by lot."""
    g, p = (p, g)
    p = g
