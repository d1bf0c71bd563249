# lowering: 'fused_cpu'
# kind: 'wrong'
# message: 'the parameter is 1.0425623024944923, expected 1.0148593880264392 with an error of at most 1.5e-13, element 0 of 6, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 604
# viewed: False
from optgen.spec import *

SCALE = 0.75


@optimizer(compute_dtype="param", paper="https://example.org")
def Random(
    p, g, /,
    m=state("key_m", init=1.5),
    k=state("key_k", init=0, shape="col", when="factored"),
    v=state("key_v", init="p"),
    *,
    lr=hyper(0.1, ge=0),
    eps=hyper(0.25, gt=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
    fa=flag(False),
    poly=hyper((1.5, -0.5, 0.0)),
):
    """Drawn by lot."""
    beta1, beta2 = betas
    if ((fa) or (fresh(v))):
        a2 = lr
        if (numel(p) > 5):
            _e = (beta1 / (1 + rms(g)))
            v = minimum((0 * clamp(a2, g, 2) + v), (lr % (abs((1 * beta2)) + 0.5)))
        else:
            if factored(p):
                k = 0.5 * k
        m = m * beta2 + v
    else:
        _low = ((tall(p)) and v >= 0)
        _e = maximum(eps, mean(m))
    b = betas[1]
    v = v * beta2 + where(abs(tanh(g)) < (-(-rms(g))), tanh(g), lerp((7e-1), v, b))
    if factored(p):
        g = orthogonalize(sign(v) * sqrt(abs(v)), poly, 1, 0.01)
    p = p - lr * (-(-g))
