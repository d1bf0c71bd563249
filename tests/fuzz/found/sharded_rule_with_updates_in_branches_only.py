# lowering: 'sharded'
# kind: 'crashed'
# message: "AttributeError: 'NoneType' object has no attribute 'send' (unfused.py)"
# hypers: {}
# shapes: ((17,),)
# dtype: 'float64'
# seed: 126
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, v=state('key_v'), m=state('key_m')):
    """Drawn by lot."""
    if fresh(m):
        m = 0.5 * m
        p = g
    elif numel(p):
        v = 0.5 * v
