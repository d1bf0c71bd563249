# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {'opt': 1.0}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, *, lr=hyper(0.1), opt=hyper(None, optional=True)):
    """Made up."""
    p = p - lr * where(opt is None, p, g)
