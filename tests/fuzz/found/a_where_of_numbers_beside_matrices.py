# lowering: 'foreach'
# kind: 'crashed'
# message: 'RuntimeError: expected m1 and m2 to have the same dtype, but got: float != double (tensor_lists.py)'
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float32'
# seed: 5
# viewed: False
from optgen.spec import factored, hyper, max_abs, optimizer, singular_vectors, state, transpose, where

@optimizer(paper='https://example.org')
def Random(p, g, /, H0=state('key_H0', shape=('rows', 'rank'), when='factored'), w=state('key_w', init='eps'), I0=state('key_I0', shape=('rank', 'cols'), when='factored'), m=state('key_m'), summed=state('summed_gradients', shape='scalar'), *, eps=hyper(0.25), rank=hyper(2, ge=1)):
    """Drawn by lot."""
    finite = max_abs(g, over='all') == 0
    summed = where(finite, 2, summed)
    g = g / summed
    if factored(p):
        H0 = 0.5 * H0 + singular_vectors(w, rank)
    if factored(p):
        I0 = 0.5 * I0 + transpose(transpose(m) @ singular_vectors(g, rank))
    m = g
    p = g
