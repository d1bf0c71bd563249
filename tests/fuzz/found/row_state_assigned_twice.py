# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, r=state("rr", shape="row"), c=state("cc", shape="col", init=0.5), *, lr=hyper(0.1, ge=0)):
    """Made up."""
    require(factored(p), "x")
    r = r + row_mean(g)
    y = r
    r = r*0.5 + mean(p*r)
    c = col_mean(g - y) + c*lr
    p = p - lr*g*r*y*c
