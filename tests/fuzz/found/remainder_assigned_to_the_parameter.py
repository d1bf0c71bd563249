# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, t, /, *, lr=hyper(0.1, ge=0)):
    """Made up."""
    p = (p - lr*g*t) % 0.5
