# lowering: 'foreach'
# kind: 'crashed'
# message: 'IndexError: list index out of range (foreach.py)'
# hypers: {}
# shapes: ((1,),)
# dtype: 'float64'
# seed: 274
# viewed: False
from optgen.spec import given, optimizer, state, sum, where

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, q=state('key_q', shape='scalar'), x_master=state('master', dtype='float32')):
    """Drawn by lot."""
    if given(hz):
        g = x_master / hz
    _a2 = q
    q = 2
    update = g - sum(g)
    kept = where(update * g, 1, 0)
    update = kept
    x_master = update
    p = g
