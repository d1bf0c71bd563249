# lowering: 'foreach'
# kind: 'crashed'
# message: ''
# hypers: {}
# shapes: ((3, 4), (5, 3), (3, 4))
# dtype: 'bfloat16'
# seed: 7
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /):
    """Made up."""
    a = where(g > 0 and 1 > 2, 1, 2) > 1.5
    p = where(a, g, p)
