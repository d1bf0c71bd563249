# lowering: 'foreach'
# kind: 'crashed'
# message: "TypeError: new_full(): argument 'fill_value' (position 2) must be Number, not Tensor (tensor_lists.py)"
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 434
# viewed: False
from optgen.spec import abs, ceil, choice, clamp, col_mean, col_sum, cos, exp, factored, flag, floor, fresh, given, hyper, lerp, maximum, mean, minimum, norm, optimizer, rms, round, row_mean, row_norm, rows, sign, singular_vectors, sqrt, state, sum, tanh, transpose, where

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, H0=state('key_H0', shape=('rows', 'rank'), when='factored'), *, rank=hyper(2, ge=1)):
    """Drawn by lot.

    Modifiers:

    * coupled_decay: Add the gradient of the penalty `l2 / 2` times the squared weights.
    * grams: Give the update the signs of the negative gradient (Cao et al., 2024).
    * decoupled_decay: Shrink the weights beside the update (Loshchilov & Hutter, 2019).
    """
    g = hz
    g = where(g < g <= g, mean(g), 2)
    if factored(p):
        H0 = 0.5 * H0 + singular_vectors(g, rank)
    p = g
