# lowering: 'foreach'
# kind: 'crashed'
# message: ''
# hypers: {'maximize': True}
# shapes: ((3, 4), (2, 1, 2))
# dtype: 'float32'
# seed: 7
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /):
    """Made up."""
    p = where(where(g > 0, 1, -g) > 0.5 and where(p > 0, 2, -p) > 0.5, g, 1)
