# lowering: 'forloop'
# kind: 'crashed'
# message: 'UnboundLocalError'
# hypers: {}
# shapes: ((90, 70),)
# dtype: 'float64'
# seed: 7
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, k=state('key_k', init=1.5, shape='row', when='c'), *, c=flag(True)):
    """Drawn by lot."""
    require(ndim(p) > 1, 'matrices')
    u = g
    if c:
        u = g * k
        k = row_mean(u ** 2)
    p = p - u / (1 + mean(u))
