# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {'fa': True}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, m=state("exp_avg"), *, lr=hyper(0.1), fa=flag(False)):
    """Made up."""
    d = rms(g)
    g = g/(d+1)
    e = mean(p*g)
    if fa:
        d = d*e
    m = m*d + g
    p = p - lr*m*where(e > 0, d, 2)
