# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {'fa': True}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, *, lr=hyper(0.1, ge=0), fa=flag(False)):
    """Made up."""
    if fa:
        d = sum(g)
    else:
        d = sum(p)
    p = p - lr*g*d
