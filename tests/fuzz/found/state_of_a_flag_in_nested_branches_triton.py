# lowering: 'fused_triton'
# kind: 'crashed'
# message: 'InterpreterError: UnboundLocalError("cannot access local variable \'key_w\' where it is not associated with a value") (fused_triton.py)'
# hypers: {'c': 0.0}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 512
from optgen.spec import *
SCALE = 0.75

@optimizer(paper='https://example.org')
def Random(p, g, t, /, w=state('key_w', when='c'), q=state('key_q', shape='scalar'), v=state('key_v'), k=state('key_k'), r=state('key_r'), s=state('key_s'), m=state('key_m'), *, c=hyper(0.5), eps=hyper(0.25), betas=hyper((0.5, 0.75)), fa=flag(False)):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    beta1, beta2 = betas
    if c:
        w = where(mean(m) < 0.3, g, 0)
    k = lerp(k, k, 0.25)
    _z = g
    if fa:
        if eps < SCALE:
            if c:
                w = g
                p = where(-0.5 < w <= t, p, 0)
                v = g
        elif fa:
            pass
        else:
            _big = v != 0
            q = 2
    _d = g
    _j = k % 1.5
    q = beta1 * q
    r = r * beta2
    s = lerp(s, c * beta2, 0.25)
    m = g
