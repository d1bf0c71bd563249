# lowering: 'fused_cpu'
# kind: 'wrong'
# message: 'key_m 0.1376953125 for 0.20112241804599762, which rounding moves by 6.2e-02, at 16 of 17, step 2, parameter 0'
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
