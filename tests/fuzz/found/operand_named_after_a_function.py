# lowering: 'fused_cpu'
# kind: 'does not compile'
# message: '‘atan2’ cannot be used as a function'
# hypers: {}
# shapes: ((2, 2, 3),)
# dtype: 'float64'
# seed: 367
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), s=state('key_s')):
    """Drawn by lot."""
    _b = s
    e = g
    y = abs(max_abs(atan2(e, g)))
    m = lerp(m, y, 0.25)
    s = g
    p = g
