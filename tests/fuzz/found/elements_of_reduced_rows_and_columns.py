# lowering: 'fused_cpu'
# kind: 'crashed'
# message: 'the process ended with -11'
# hypers: {}
# shapes: ((90, 70),)
# dtype: 'float64'
# seed: 0
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    p = p - g / (1 + rms(row_mean(g) * col_mean(g)))
