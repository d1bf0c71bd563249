# lowering: 'forloop'
# kind: 'wrong'
# message: 'the parameter is -0.9587552724590164, expected 0.050028314418876625 with an error of at most 2.4e-08, element 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((1,),)
# dtype: 'float64'
# seed: 992
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m', dtype='float32')):
    """Drawn by lot."""
    m = g
    p = where(g < m, g, p)
