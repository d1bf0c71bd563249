# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {'fa': True, 'fb': True}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, t, /, m=state("exp_avg"), *, lr=hyper(0.1, ge=0), fa=flag(False), fb=flag(False)):
    """Made up."""
    x = g
    if fa:
        x = p
        g = x + m
    elif fb and t > 1:
        m = g
        g = x*2
    m = m + x
    p = p - lr*g*m
