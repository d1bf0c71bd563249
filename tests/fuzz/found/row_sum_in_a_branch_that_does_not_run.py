# lowering: 'foreach'
# kind: 'crashed'
# message: 'IndexError: list index out of range (blocks.py)'
# hypers: {'c': 0.0}
# shapes: ((2, 2, 3),)
# dtype: 'float64'
# seed: 26
from optgen.spec import *

@optimizer(paper="https://example.org")
def Random(p, g, /, v=state('key_v'), w=state('key_w', when='c'), m=state('key_m'), *, c=hyper(0.5)):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    if c:
        w = w + row_sum(p)
    v, p = (p, v)
    m = lerp(m, g, 0.25)
