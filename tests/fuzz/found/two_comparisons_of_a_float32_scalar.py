# lowering: 'forloop'
# kind: 'wrong'
# message: 'key_q is 0.0, expected 2.0 with an error of at most 2.9e-06, element 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 414
# viewed: False
from optgen.spec import given, hyper, optimizer, state, where

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, q=state('key_q', init='lr', shape='scalar', dtype='float32'), *, lr=hyper(0.1)):
    """Drawn by lot."""
    _update = hz
    q = where(0.1 < q < 2, 2, 0)
    p = g
