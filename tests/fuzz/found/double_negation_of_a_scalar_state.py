# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, s=state("product", shape="scalar", init=1.5), *, lr=hyper(0.1, ge=0)):
    """Made up."""
    s = -(-s) * 0.5
    p = p - lr*g*s
