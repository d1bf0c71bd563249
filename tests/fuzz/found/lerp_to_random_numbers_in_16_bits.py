# lowering: 'fused_cpu'
# kind: 'wrong'
# message: 'key_m is 0.1376953125, expected 0.20112241804599762 with an error of at most 6.2e-02, element 16 of 17, step 2, parameter 0'
# hypers: {}
# shapes: ((17,),)
# dtype: 'bfloat16'
# seed: 351
# viewed: False
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, m=state('key_m')):
    """Drawn by lot."""
    m = lerp(m, random(3, 2), 0.25)
    p = g
