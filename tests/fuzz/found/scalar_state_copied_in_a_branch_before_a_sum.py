# lowering: 'functional'
# kind: 'crashed'
# message: "AttributeError: 'float' object has no attribute 'reshape' (forloop.py)"
# hypers: {'fa': True}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 516
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), v=state('key_v'), f2=state('key_f2', shape='scalar'), f=state('key_f', shape='scalar'), *, fa=flag(False)):
    """Drawn by lot."""
    _x = g
    if fa:
        f = f2
        p = v
    f2 = 2
    if fresh(f2):
        f = sum(v)
    v, m = (m, v)
    f = 0.5 * f
