# lowering: 'forloop'
# kind: 'wrong'
# message: 'key_q 0.0 for 2.0, which rounding moves by 2.9e-06, at 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 414
# viewed: False
from optgen.spec import abs, col_mean, col_norm, cols, cos, factored, gaussian, given, hyper, inverse_root, lerp, minimum, optimizer, row_max_abs, row_mean, row_sum, singular_vectors, state, tanh, transpose, where

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, q=state('key_q', init='lr', shape='scalar', dtype='float32'), *, lr=hyper(0.1)):
    """Drawn by lot.

    Modifiers:

    * master: Keep the weights in float32; the parameter is rounded (Micikevicius et al., 2018).
    """
    _update = hz
    q = where(0.1 < q < 2, 2, 0)
    p = g
