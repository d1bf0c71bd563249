# lowering: 'forloop'
# kind: 'wrong'
# message: 'a sum of as many rows is one of as many elements'
# hypers: {}
# shapes: ((3, 2),)
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    p = p - g * sum(where(2 > 2 and row_mean(g) > 0, rows(p), cols(p)))
