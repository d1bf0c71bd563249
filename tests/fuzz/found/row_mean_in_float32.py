# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {}
# shapes: ((3, 4), (2, 3))
# dtype: 'float32'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, m=state("exp_avg"), *, lr=hyper(0.1, ge=0)):
    """Made up."""
    if factored(p):
        g = g - row_mean(g)
    m = lerp(m, g, 0.1)
    p = maximum(p - lr*m, g*mean(p))
