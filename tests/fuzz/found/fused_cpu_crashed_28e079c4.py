# lowering: 'fused_cpu'
# kind: 'crashed'
# message: 'UnfitError: sweep4 takes real or complex numbers, not torch.bool (elementwise.py)'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 829
# viewed: False
from optgen.spec import *
SCALE = 0.75

@optimizer(paper='https://example.org')
def Random(p, g, t, /, m=state('key_m'), v=state('key_v', init='p'), H0=state('key_H0', shape=('rows', 'rank')), I0=state('key_I0', init=-1, shape=('rank', 'cols'), when='fa'), *, lr=hyper(0.1, ge=0), c=hyper(0.5), betas=hyper((0.5, 0.75), ge=0, lt=1), fa=flag(False), rank=hyper(2, ge=1, whole=True)):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    beta1, beta2 = betas
    _B = where(transpose(m) @ p > 0.1, transpose(m) @ p, c)
    a2 = lr
    h2 = --row_mean(p)
    big = mean(m) < 0.3
    m = beta1 * m + (1 - beta1) * g
    H0 = 0.5 * H0 + 0.25 * H0
    if fa:
        I0 = I0 * beta2 + where(a2 < SCALE, transpose(transpose(v) @ H0), transpose(transpose(m) @ H0))
    p = (p - lr * where(big, g + h2, g)) % 1.5
