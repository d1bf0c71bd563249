# lowering: 'fused_cpu'
# kind: 'wrong'
# message: 'the parameter is -0.4932688117274025, expected -0.4977527231705549 with an error of at most 1.8e-15, element 0 of 3, step 1, parameter 0'
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 490
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, k=state('key_k', shape='col'), r=state('key_r', shape='row'), m=state('key_m'), *, lr=hyper(0.1, ge=0), betas=hyper((0.5, 0.75), ge=0, lt=1)):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    beta1, _beta2 = betas
    h2 = maximum(row_mean(m), row_sum(m))
    a = beta1 * lr - 0.1
    j = k
    k = beta1 * k + (1 - beta1) * where(a < 1.5, col_sum(p) / rows(p), col_mean(g))
    r = 0.5 * r + 0.25 * (row_norm(m) / norm(m))
    m = beta1 * m + (1 - beta1) * p
    p = p - lr * ((m + h2) * j)
