# lowering: 'forloop'
# kind: 'wrong'
# message: ''
# hypers: {'fa': True, 'fb': True}
# shapes: ((3, 4), (2, 3))
# dtype: 'float64'
# seed: 1
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, t, /, s=state("product", shape="scalar", init=1.5), q=state("qq", shape="scalar", init=0.5), *, lr=hyper(0.1, ge=0), fa=flag(False), fb=flag(False)):
    """Made up."""
    s = where(fa, s*2, q)
    q = where(t > 1 and fb, s, q + 1)
    p = p - lr*g*s*q
