# lowering: 'forloop'
# kind: 'wrong'
# message: 'the parameter is 1.8529221024295632, expected 1.2438363559082632 with an error of at most 4.6e-15, element 0 of 4, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 793
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, /, s=state('key_s', init='c', shape='scalar'), *, c=hyper(0.5), eps=hyper(0.25), pair=hyper((None, 0.5), optional=True)):
    """Drawn by lot."""
    if pair[0] is None:
        s = -eps - -eps
    p = p - g * s
