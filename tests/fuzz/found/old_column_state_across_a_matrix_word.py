# lowering: 'load'
# kind: 'crashed'
# message: 'InternalError: <drawn>:8:5: optgen failed here: a defect of optgen, not of the spec; please report it together with the spec (VerifyError: read after version 1 was written: key_k) (errors.py)'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 584
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, k=state('key_k', shape='col'), q=state('key_q', init='c'), *, c=hyper(0.5), poly=hyper((1.5, -0.5, 0.0))):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    z = g
    j = k
    g = orthogonalize(z, poly, 1, 0.01)
    k = k * 2
    p = g * j * q
