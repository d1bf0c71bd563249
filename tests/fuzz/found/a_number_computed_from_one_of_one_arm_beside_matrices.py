# lowering: 'fused_cpu'
# kind: 'crashed'
# message: "AttributeError: 'float' object has no attribute 'tensors' (tensor_lists.py)"
# hypers: {}
# shapes: ((5,),)
# dtype: 'float64'
# seed: 730
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, q=state('key_q', init=0.5, shape='scalar'), w=state('key_w', init=0.001), R=state('key_R', init=0.001, shape=('cols', 'cols'), when='factored'), m=state('key_m', init=0), v=state('key_v', init=0.001), s=state('key_s', init=0, shape='scalar'), f=state('key_f', init='lr', shape='scalar'), *, lr=hyper(0.1, ge=0), c=hyper(0.5), betas=hyper((0.5, 0.75), ge=0, lt=1), opt=hyper(None, optional=True), fb=flag(True), fix=fixed(True)):
    """Drawn by lot."""
    beta1, beta2 = betas
    p = p - 0.125 * hz * abs(log(exp(clamp(hz, -1, 1))))
    if opt is not None:
        pass
    else:
        f = betas[1]
    f = f * beta2 + f
    if not fb:
        if factored(p):
            g = g - row_max_abs(row_mean(m) * col_mean(v))
        else:
            f = betas[1]
            f = where(fix, mean(v), beta1)
            g = log(v)
    else:
        s = cos(minimum(beta1, t))
    v = maximum((f + m) ** 2, maximum(c, lr) - (s - 3))
    q = q * beta2 + (-beta1) ** 2
    w = 0.5 * w + 0.25 * clamp(maximum(p, f), -abs(minimum(rms(v), f)), abs(minimum(rms(v), f)))
    if factored(p):
        R = 0.5 * R + 0.25 * (transpose(w) @ (m @ transpose(w)) @ v)
    m = beta1 * m + (1 - beta1) * p
