# lowering: 'forloop'
# kind: 'crashed'
# message: "UnboundLocalError: cannot access local variable 'update_unscaled' where it is not associated with a value (forloop.py)"
# hypers: {'opt': 0.5}
# shapes: ((5,),)
# dtype: 'float64'
# seed: 432
# viewed: False
from optgen.spec import given, hyper, optimizer, state

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, s=state('key_s', shape='scalar'), m=state('key_m'), *, opt=hyper(None, optional=True)):
    """Drawn by lot."""
    g = hz
    if opt:
        s = 2
        update = p
    elif s:
        update = 0 * p
        m = 0.5 * m + g
    else:
        update = 0 * p
    p = update
