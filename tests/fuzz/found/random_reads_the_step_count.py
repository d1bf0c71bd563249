# lowering: 'functional'
# kind: 'crashed'
# message: "NameError: name 'step' is not defined (forloop.py)"
# hypers: {}
# shapes: ((2, 3), (2, 3))
# dtype: 'float64'
# seed: 805
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(p, g, t, /, m=state("key_m", init=-1)):
    """Drawn by lot."""
    m = rounded_down(m + random(1, 2) * 0.5)
    p = p - 0.1 * m * g
