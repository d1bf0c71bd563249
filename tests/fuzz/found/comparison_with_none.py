# lowering: 'oracle'
# kind: 'crashed'
# message: "TypeError: '<' not supported between instances of 'NoneType' and 'Tensor' (words.py)"
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 564
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, *, opt=hyper(None, optional=True)):
    """Drawn by lot."""
    if opt < 3:
        pass
    p = g
