# lowering: 'foreach'
# kind: 'wrong'
# message: 'the parameter is 1.9922388168823912, expected 1.990676316882391 with an error of at most 1.1e-14, element 0 of 4, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 956
# viewed: False
from optgen.spec import factored, optimizer, require, state

@optimizer(paper='https://example.org')
def Random(p, g, /, r=state('key_r', init=1.5, shape='row', dtype='bfloat16')):
    """Drawn by lot."""
    require(factored(p), '{shape}')
    h = r / (1 + r)
    r = r * 2
    p = p + h + 0 * g
