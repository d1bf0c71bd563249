# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, *, lr=hyper(0.1), c=hyper((1.5,-0.5,0.0))):
    """Made up."""
    require(ndim(p) == 2, "x")
    p = p - lr * orthogonalize(orthogonalize(g, c, 2, 0.01), c, 2, 0.01)
