# lowering: 'load'
# kind: 'crashed'
# message: 'VerifyError: undefined on this path: key_w3.2'
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 512
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, w=state('key_w', when='not fc'), q=state('key_q', shape='scalar'), v=state('key_v'), m=state('key_m'), *, eps=hyper(0.25), fa=flag(True), fc=flag(False)):
    """Drawn by lot."""
    if fc:
        _e = g
    else:
        w = where(mean(m), g, 0)
    if fa:
        if eps:
            if fc:
                _d = g
            else:
                w = g
                p = where(0.5 < w <= t, p, 0)
                v = g
        elif fa:
            pass
        else:
            _big = v
            q = 2
    q = 2 * q
    m = g
