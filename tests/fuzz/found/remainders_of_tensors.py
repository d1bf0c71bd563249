# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, t, /, m=state("exp_avg"), *, lr=hyper(0.1, ge=0)):
    """Made up."""
    m = (m + g) % (abs(p) + 0.5)
    p = p - lr * (m % 0.3) - (2 % (abs(g)+1)) + (t % 2)
