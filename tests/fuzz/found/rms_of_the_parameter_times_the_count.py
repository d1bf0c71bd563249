# lowering: 'load'
# kind: 'crashed'
# message: 'RuntimeError: generator raised StopIteration (hoist_scalars.py)'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 390
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /):
    """Drawn by lot."""
    z = g * rms(t * p)
    p = lerp(z, z ** 2, g)
