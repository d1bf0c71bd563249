# lowering: 'foreach'
# kind: 'crashed'
# message: 'RuntimeError: Could not infer dtype of NoneType (unfused.py)'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 276
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, w=state('key_w'), *, opt=hyper(None, optional=True)):
    """Drawn by lot."""
    w = g
    p = where(g > 2 and opt, g, w)
