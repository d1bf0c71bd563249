# lowering: 'load'
# kind: 'crashed'
# message: "KeyError: 'key_k_2' (ssa.py)"
# hypers: {}
# shapes: ((2, 1, 2),)
# dtype: 'float64'
# seed: 158
# viewed: False
from optgen.spec import col_sum, flag, given, hyper, ndim, optimizer, require, state

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, s=state('key_s', init='c'), m=state('key_m', dtype='8bit'), k=state('key_k', shape='col', when='fa'), *, c=hyper(0.5), fa=flag(False)):
    """Drawn by lot."""
    require(ndim(p) > 1, '{shape}')
    _update = hz
    if fa:
        k = col_sum(g)
        m = g
    if fa:
        k = k + 2
    _update = s * m
    p = g
