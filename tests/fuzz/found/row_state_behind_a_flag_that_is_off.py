# lowering: 'forloop'
# kind: 'crashed'
# message: 'UnboundLocalError'
# hypers: {}
# shapes: ((3, 4),)
# dtype: 'float64'
# seed: 7
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, k=state('key_k', shape='row', when='c'), *, c=flag(False)):
    """Drawn by lot."""
    require(ndim(p) > 1, 'matrices')
    if c:
        k = lerp(k, row_mean(g ** 2), 0.25)
    if c:
        k = 2 * k
        p = p - g * k
    else:
        p = p - g
