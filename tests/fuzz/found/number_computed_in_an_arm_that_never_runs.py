# lowering: 'fused_cpu'
# kind: 'does not compile'
# message: '‘one_minus_beta1’ was not declared in this scope'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 874
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, s=state('key_s', shape='scalar'), v=state('key_v'), *, c=hyper(0.5), betas=hyper((0.5, 0.75))):
    """Drawn by lot."""
    beta1, _beta2 = betas
    b = 2
    if b:
        s = betas[1]
    else:
        if s:
            pass
        if c:
            p = g
        else:
            v = (1 - beta1) * (clamp(beta1, 0, 2) * v)
