# lowering: 'foreach'
# kind: 'crashed'
# message: "TypeError: new_full(): argument 'fill_value' (position 2) must be Number, not Tensor (tensor_lists.py)"
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 434
# viewed: False
from optgen.spec import factored, given, hyper, mean, optimizer, singular_vectors, state, where

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, H0=state('key_H0', shape=('rows', 'rank'), when='factored'), *, rank=hyper(2, ge=1)):
    """Drawn by lot."""
    g = hz
    g = where(g < g <= g, mean(g), 2)
    if factored(p):
        H0 = 0.5 * H0 + singular_vectors(g, rank)
    p = g
