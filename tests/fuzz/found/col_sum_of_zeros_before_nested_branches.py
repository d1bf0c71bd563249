# lowering: 'fused_triton'
# kind: 'crashed'
# message: "TypeError: random_fused_triton_step() got multiple values for argument 'VECTOR' (bucket.py)"
# hypers: {'lr': 0.01, 'c': 0.5, 'eps': 1.0, 'betas': (0.0, 0.25), 'maximize': True}
# shapes: ((1, 4), (2, 3))
# dtype: 'float64'
# seed: 279
from optgen.spec import *

SCALE = 0.75


def blend(x, y):
    """Half of one and a part of the other."""
    half = 0.5 * x
    x = half + y
    return x - 0.25 * half


def turned(x, y):
    x, y = y, x
    return 0.5 * x - SCALE * y


@optimizer(paper="https://example.org")
def Random(
    p, g, t, /,
    m=state("key_m", init=1e-3),
    v=state("key_v", init=1.5),
    r=state("key_r", init=0, shape="row"),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    eps=hyper(0.25, gt=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
):
    """Drawn by lot."""
    require(ndim(p) > 1, "{shape}")
    beta1, beta2 = betas
    h = r
    a2 = (eps - abs(beta2))
    j2 = col_sum(p - p)
    if (not ((not (not (ndim(p) > 1) or ((0.125) != (1)))) and (ndim(p) > 1))):
        g, m = v, p
    elif (numel(p) > 5):
        if (t <= 2):
            _a = (betas[1] / (SCALE))
        j2 = (j2 % 1.5)
    else:
        x = (turned((g % (abs(g) + 0.5)), v) / (minimum(sqrt(abs(beta2)), (lr / 2))**2 + 1))
        if ((t % 2 == 0) or (ndim(p) > 1)):
            _a = eps
            _j = col_mean(g**0)
            m = maximum(beta2 * m, abs(g) + eps)
            p = p * (1 - lr * c) - lr * sign(m)
        elif ((lr > 0.05) and (numel(p) > 5)):
            _d = clamp(norm(x), 0.1, 2)
        elif (c):
            _d = where((not lr > (0.9)), mean(g), (1))
            r = 0.5 * r
            v = lerp(v, abs(x), 0.25)
        else:
            _d = rms(p)
            r, h = row_mean(m * j2), h
            m = beta1 * m + (1 - beta1) * log(abs(sign(m)) + 0.5)
        v = -(-v) + g
    p = p - lr * ((g + ((1.5) + lr)) * (1 + a2)) / (sqrt(abs(sqrt(abs(p)))) + 0.5)
