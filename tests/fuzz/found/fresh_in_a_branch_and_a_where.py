# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, m=state("exp_avg"), *, lr=hyper(0.1, ge=0)):
    """Made up."""
    if fresh(m):
        m = g
    else:
        m = 0.5*m + g
    p = p - lr * where(fresh(m) or g > 0, p, g) * m
