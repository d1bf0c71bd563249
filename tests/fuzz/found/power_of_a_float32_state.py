# lowering: 'functional'
# kind: 'wrong'
# message: 'key_m is -0.003988891839981079, expected -0.003988897893577814 with an error of at most 3.8e-09, element 0 of 4, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 1, 2),)
# dtype: 'float64'
# seed: 366
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m', init='eps', dtype='float32'), *, eps=hyper(0.25), betas=hyper((0.5, 0.75))):
    """Drawn by lot."""
    _beta1, beta2 = betas
    m = lerp(exp(-m), m * beta2, sqrt(eps)) - (m + 0.5) ** 2.5
    p = g
