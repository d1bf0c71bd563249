# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {'fa': True}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, m=state("exp_avg"), *, lr=hyper(0.1, ge=0), fa=flag(False)):
    """Made up."""
    if fa:
        m = 0.5*m + g
    p = p - lr * where(fa and lr > 0, p, g) - m
