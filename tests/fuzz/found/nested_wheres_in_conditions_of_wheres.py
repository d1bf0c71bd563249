# lowering: 'foreach'
# kind: 'crashed'
# message: ''
# hypers: {}
# shapes: ((17,),)
# dtype: 'float64'
# seed: 7
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /):
    """Made up."""
    p = where(where(where(g > 0, 1, -g) > 0.5, 2, -p) > 0.1, 3, exp(g))
