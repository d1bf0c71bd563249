# lowering: 'foreach'
# kind: 'crashed'
# message: 'RuntimeError: expected dtype c10::BFloat16 for `end` but got dtype float (foreach.py)'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'bfloat16'
# seed: 769
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, hz=given('extra'), /, hd=state('key_hd', shape='group'), f=state('key_f', shape='scalar'), w=state('key_w'), v=state('key_v'), m=state('key_m'), *, fa=flag(False)):
    """Drawn by lot."""
    hd = rms(p, over='all')
    g = g / hd ** 2
    g = g - hz
    if fa:
        w, v = (m, floor(p))
    elif factored(p):
        g = g - row_sum(g)
    f = mean(v, over='group')
    w = atan2(f, w)
    m = lerp(m, 2, m)
    p = g
