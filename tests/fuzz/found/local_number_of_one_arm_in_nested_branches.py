# lowering: 'fused_triton'
# kind: 'crashed'
# message: 'InterpreterError: UnboundLocalError("cannot access local variable \'b\' where it is not associated with a value") (fused_triton.py)'
# hypers: {'lr': 0.01, 'c': 0.5, 'eps': 0.25, 'betas': (0.0, 0.25), 'opt': None, 'pair': (None, 0.5), 'fa': False, 'fb': False, 'maximize': False}
# shapes: ((2, 2, 3), (1, 1))
# dtype: 'float64'
# seed: 317
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
    p, g, /,
    v=state("key_v", init=0),
    m=state("key_m", init="eps"),
    *,
    lr=hyper(0.1, ge=0),
    c=hyper(0.5),
    eps=hyper(0.25, gt=0),
    betas=hyper((0.5, 0.75), ge=0, lt=1),
    opt=hyper(None, optional=True),
    pair=hyper((None, 0.5), optional=True),
    fa=flag(False),
    fb=flag(True),
    mode=choice("a", "b", None),
):
    """Drawn by lot."""
    beta1, beta2 = betas
    if (mode is None):
        _x = g
        _e = mean(g)
    elif opt is not None:
        v = (lr * (p + (m / (1 + abs(mean(g))))) + (1 - lr) * (m - (g + m)))
        b = sign((eps / 2))
        if (c > 0):
            _low = g < v
        elif (not (not (fb) or ((b < (2)) or (fresh(m))))):
            v = (m - minimum(rms(abs(m)), - -mean(m)))
        elif (not ((fresh(m)) and (pair[0] is None))):
            if factored(p):
                _z = (-(1 * (v / (sqrt(m**2) + 0.25))))
            else:
                v = 0.5 * v + 0.25 * sqrt(abs(maximum(v, v)))
                m = beta1 * m + (1 - beta1) * -(-(-where(p != 0, b, beta2)))
        else:
            v = beta1 * v + (1 - beta1) * g
            p = p - lr * v
    else:
        d = maximum((0.125), mean(v))
        v = where((((fa) and not (v < m)) or d > betas[1]), v, 0)
        m = -(-m) + g
    p = p - lr * (((2) / 2) * (g / (1 + abs(mean(v))))) / (sqrt(abs(where(g < g, g, mean(v)))) + 0.5)
