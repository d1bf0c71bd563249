# lowering: 'load'
# kind: 'crashed'
# message: 'VerifyError: undefined on this path: key_f3.2 (verify_versions.py)'
# hypers: {}
# shapes: ((2, 70, 60),)
# dtype: 'float64'
# seed: 430
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, hz=given('extra'), /, f2=state('key_f2', shape='scalar'), f=state('key_f', shape='scalar'), *, betas=hyper((0.5, 0.75)), opt=hyper(None, optional=True)):
    """Drawn by lot."""
    beta1, _beta2 = betas
    g = where(hz > g, g, p)
    if opt:
        f = mean(g)
    elif beta1:
        f2 = f
        f = f2
        f = 0.5 * f
    else:
        f2 = rms(g)
    p = g
