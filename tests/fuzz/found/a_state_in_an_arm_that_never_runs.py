# lowering: 'load'
# kind: 'crashed'
# message: 'VerifyError: `key_w` is stored in 0 phases (verify.py)'
# hypers: {}
# shapes: ((),)
# dtype: 'float64'
# seed: 972
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, w=state('key_w', when='fa'), s=state('key_s', shape='scalar'), v=state('key_v'), *, fa=flag(False)):
    """Drawn by lot."""
    v = g
    z = atan2(max_abs(v), p)
    if not not fa:
        pass
    elif fa:
        w = w + mean(z)
        _d = mean(w)
        s, _b = (2, s)
    p = g * s
