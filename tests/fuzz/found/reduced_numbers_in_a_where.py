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
        m = 2*m
    else:
        m = maximum(max_abs(g) - g, m)
    m = -g * max_abs(p)
    g = m
    u = -m*minimum(mean(g), p)
    p = p - lr * where(fa and m > 0, maximum(g, mean(g)) - u, g) / (sqrt(abs(lerp(p, g, mean(m)))) + 0.5)
