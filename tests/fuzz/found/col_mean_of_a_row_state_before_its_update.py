# lowering: 'fused_cpu'
# kind: 'wrong'
# message: 'the parameter is 0.5625684718684533, expected 0.562188877689792 with an error of at most 3.5e-15, element 0 of 4, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 1, 2),)
# dtype: 'float64'
# seed: 235
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, k=state('key_k'), r=state('key_r', init=1.5, shape='row'), m=state('key_m'), v=state('key_v', init='p'), *, lr=hyper(0.1), betas=hyper((0.5, 0.75), ge=0, lt=1)):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    beta1, beta2 = betas
    x = r / (1 + col_mean(r) ** 2) * (mean(v) - mean(m)) - p
    m = beta1 * m + (1 - beta1) * x
    h = row_mean(g ** 0)
    k = k * beta2 + (k + col_mean(g))
    r = r * beta2 + r
    p = p - lr * (-(g + m) ** 2 + h)
