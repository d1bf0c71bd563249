# lowering: 'forloop'
# kind: 'wrong'
# message: 'key_s is 0.0, expected 7.450580707946131e-10 with an error of at most 1.8e-15, element 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float32'
# seed: 308
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, v=state('key_v'), m=state('key_m'), s=state('key_s', init='lr', shape='scalar', dtype='torch'), *, lr=hyper(0.1), betas=hyper((0.5, 0.75))):
    """Drawn by lot."""
    beta1, _beta2 = betas
    v = g
    m = m + v
    s = beta1 * s + beta1 * ---lr
    p = g
