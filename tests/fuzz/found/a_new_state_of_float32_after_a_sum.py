# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'the parameter is -0.8964277376933262, expected -0.9003739976789923 with an error of at most 3.2e-06, element 0 of 3, step 1, parameter 0'
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 45
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, v=state('key_v', dtype='float32')):
    """Drawn by lot."""
    v = 0.3 * g
    p = atan2(mean(p), v)
