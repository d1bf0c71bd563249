# lowering: 'load'
# kind: 'crashed'
# message: "InternalError: KeyError('item')"
# hypers: {}
# shapes: ((3, 4), (5,))
# dtype: 'float64'
# seed: 7
# viewed: False
from optgen.spec import abs, hyper, lerp, minimum, optimizer, state, where

@optimizer(paper='https://example.org')
def Random(p, g, t, /, m=state('key_m'), v=state('key_v'), *, lr=hyper(0.1, ge=0), beta=hyper(0.3, ge=0, lt=1), betas=hyper((0.5, 0.7), ge=0, lt=1)):
    """Running averages whose weights are tensors."""
    m = lerp(m, g, betas[1] * minimum(abs(g), 1))
    v = lerp(v, g, where(g > 0, betas[0] * lr, 1 - beta**t * lr * lr))
    p = p - lr * m - lr * v
