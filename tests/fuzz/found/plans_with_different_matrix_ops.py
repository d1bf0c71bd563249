# lowering: 'load'
# kind: 'crashed'
# message: 'NotImplementedError: fused C++: plans with different matrix ops (phased_file.py)'
# hypers: {}
# shapes: ((2, 3), (2, 1, 2))
# dtype: 'float64'
# seed: 457
# viewed: False
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(
    p, g, t, hz=given("extra"), /,
    m=state("key_m", init=0),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
    opt=hyper(None, optional=True),
    poly=hyper((1.5, -0.5, 0.0)),
):
    """Drawn by lot."""
    require(factored(p), "{shape}")
    _beta1, beta2 = betas
    if given(hz):
        g = hz * sqrt(abs(hz / (abs(hz) + 0.5)))
    if tall(p) and 0.1 < lr < 2:
        if opt is not None:
            m = m * beta2 + (t - g)
            z = g / (c**2 + 1)
    z = orthogonalize(2 + 0 * m, poly, 1, 0.01)
    p = (p - lr * (minimum(g, 0.9) - z)) % 1.5
