# lowering: 'load'
# kind: 'crashed'
# message: "KeyError: 'machine_eps' (expressions.py)"
# hypers: {}
# shapes: ((2, 2, 3),)
# dtype: 'float64'
# seed: 246
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /):
    """Drawn by lot."""
    p = mean(g) / (g / machine_eps(p) + 1)
