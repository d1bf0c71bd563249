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
    require(factored(p), "x")
    m = m + g*where(fa, row_mean(g), 1.5)
    p = p - lr*m*where(fa, 2, col_mean(p))
