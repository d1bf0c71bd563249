# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, t, /, *, lr=hyper(0.1, ge=0)):
    """Made up."""
    x = sqrt(lr/(t-1))
    y = (0.5-t)**lr
    z = exp(t*1000)
    if t > 20:
        p = p - x*g*y*z
    else:
        p = p - lr*g
