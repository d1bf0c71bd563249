# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {'bb': (0.3, 0.7)}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, s=state("product", shape="scalar", init=1.5), *, lr=hyper(0.1), bb=hyper((None, 0.5), optional=True)):
    """Made up."""
    a, b = bb
    if a is None:
        x = b
    else:
        x = a
    if bb[0] is not None:
        s = s + 1
    p = p - lr*g*s*x*bb[1]
