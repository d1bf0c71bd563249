# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'key_f is 0.7347575299209451, expected 0.5195520319349779 with an error of at most 1.3e-14, element 0 of 6, step 1, parameter 0'
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 614
# viewed: False
from optgen.spec import *

@optimizer(compute_dtype='param', paper='https://example.org')
def Random(p, g, /, f=state('key_f'), s=state('key_s'), m=state('key_m', init='p'), v=state('key_v'), L=state('key_L', shape=('rows', 'rows')), w=state('key_w'), *, c=hyper(0.5), fa=flag(False), fb=flag(True)):
    """Drawn by lot."""
    require(ndim(p) >= 2, '{shape}')
    h2 = row_mean(m)
    j2 = col_mean(m) - mean(h2, over='matrix')
    f = f + rms(j2)
    if fa:
        pass
    s = s * g
    m = g
    v = g
    if fb:
        L = L + h2
    if c:
        w = w * g + v
    p = g
