# lowering: 'forloop'
# kind: 'wrong'
# message: 'key_m has shape (17,), expected (), step 1, parameter 0'
# hypers: {}
# shapes: ((17,),)
# dtype: 'float64'
# seed: 485
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, m=state('key_m')):
    """Drawn by lot."""
    m = where(t or g <= g, t, 1.5)
    p = m
