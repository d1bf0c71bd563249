# lowering: 'foreach'
# kind: 'wrong'
# message: 'the parameter is 1056.15976323799, expected 1055.0097739494731 with an error of at most 3.4e-09, element 0 of 4, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 1, 2),)
# dtype: 'float64'
# seed: 290
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), *, poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(ndim(p) >= 2, '{shape}')
    p, m = (m, p)
    e = mean(g)
    y = orthogonalize(m, poly, 1, 0.01)
    p = p - y / e
