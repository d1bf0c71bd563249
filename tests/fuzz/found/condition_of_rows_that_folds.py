# lowering: 'fused_cpu'
# kind: 'does not compile'
# message: ''
# hypers: {'maximize': True}
# shapes: ((3, 4), (2, 1, 2))
# dtype: 'float32'
# seed: 7
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /):
    """Made up."""
    require(ndim(p) >= 2, '{shape}')
    a = row_mean(g) > 0 and 1 > 2
    b = a or g > 0.5
    p = where(b, g, 3)
