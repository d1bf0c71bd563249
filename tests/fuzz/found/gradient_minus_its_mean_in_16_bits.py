# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {}
# shapes: ((3, 4), (2, 3))
# dtype: 'bfloat16'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, m=state("exp_avg"), *, lr=hyper(0.1, ge=0)):
    """Made up."""
    g = g - mean(g)
    m = 0.9*m+0.1*g
    p = p - lr*m
