# lowering: 'fused_cpu'
# kind: 'wrong'
# message: 'key_m is 0.0, expected -0.22222606890495494 with an error of at most 3.2e-15, element 4 of 6, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 444
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, q=state('key_q', shape='scalar'), s=state('key_s', shape='scalar'), k=state('key_k'), w=state('key_w'), v=state('key_v', init='p'), m=state('key_m'), *, lr=hyper(0.1), betas=hyper((0.5, 0.75)), fa=flag(False)):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    _beta1, _beta2 = betas
    q, s = (s, q)
    _ok = fa
    k = 0.5 * k + 0.25 * k
    if fa:
        w = 0.5 * w + 0.25 * (where(row_sum(p) / cols(p) > col_sum(m) / rows(p), m, m) * sign(sum(g)))
    m = lerp(m, where(rms(row_sum(p) / cols(p) * k) > lerp(v, row_mean(g), 3), rms(row_sum(p) / cols(p) * k), g % -1.5), 0.25)
    p = p - lr * (2 + 0 * where(betas[1] < g, g, mean(g))) * q
