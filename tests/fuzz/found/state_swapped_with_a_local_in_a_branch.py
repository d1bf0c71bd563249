# lowering: 'load'
# kind: 'crashed'
# message: 'StaleReadError: read after version -1 was written: x.3'
# hypers: {}
# shapes: ((17,),)
# dtype: 'float64'
# seed: 514
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, r=state('key_r', shape='row', when='factored'), v=state('key_v'), m=state('key_m'), s=state('key_s', shape='scalar'), *, betas=hyper((0.5, 0.75)), opt=hyper(None, optional=True)):
    """Drawn by lot."""
    x = sign(p)
    _beta1, _beta2 = betas
    m, v = (-m, x)
    if ndim(p):
        x, v = (v, x)
        if opt is None:
            m = lerp(x, mean(m), s)
        else:
            s = 2
    if factored(p):
        r = r + row_mean(x)
    p = sign(x) / sqrt(v / (abs(g) + 0.5))
