# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {'opt': 0.0}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, t, /, s=state("product", shape="scalar", init=1.5), *, lr=hyper(0.1), opt=hyper(None, optional=True)):
    """Made up."""
    if opt is not None and t > 1:
        g = g*opt
    if opt is None:
        s = s + 1
    else:
        s = opt*s
    p = p - lr*g*s
