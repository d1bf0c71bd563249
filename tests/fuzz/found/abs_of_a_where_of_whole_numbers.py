# lowering: 'fused_cpu'
# kind: 'does not compile'
# message: 'call of overloaded ‘abs(int)’ is ambiguous'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 607
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, s=state('key_s', shape='scalar')):
    """Drawn by lot."""
    _u = s
    s = abs(where(not t, 5, 0))
    p = g
