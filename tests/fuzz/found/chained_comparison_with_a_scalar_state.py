# lowering: 'fused_cpu'
# kind: 'wrong'
# message: 'key_v is -0.20677940820746304, expected 0.34375 with an error of at most 7.7e-15, element 0 of 4, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 870
# viewed: False
from optgen.spec import *

def blend(x, y):
    """Half of one and a part of the other."""
    half = 0.5 * x
    x = half + y
    return x - 0.25 * half

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, f=state('key_f'), q=state('key_q', init='c', shape='scalar'), H0=state('key_H0'), s=state('key_s', shape='scalar'), m=state('key_m'), v=state('key_v'), *, c=hyper(0.5), eps=hyper(0.25), betas=hyper((0.5, 0.75)), fb=flag(True)):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    _beta1, beta2 = betas
    g = g - 0.5 * hz
    _e = f
    f = 0.5 * f + 0.25 * tanh(sum(v))
    q = 0.5 * q + 0.25 * +-0.5
    H0 = lerp(H0, H0 @ identity(transpose(H0) @ H0), 0.25)
    if not fb:
        pass
    s = s * beta2 + 0.125
    m = 0.25 * (abs(s * eps) + 0.5) ** clamp(m, -2, 2)
    v = blend(where(-0.5 < m <= q, -p, --m), m)
    p = g
