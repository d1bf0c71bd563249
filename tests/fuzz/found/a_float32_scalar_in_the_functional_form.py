# lowering: 'functional'
# kind: 'wrong'
# message: 'key_q 1.100000023841858 for 1.1000000014901161, which rounding moves by 3.9e-15, at 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 1),)
# dtype: 'float64'
# seed: 554
# viewed: False
from optgen.spec import abs, factored, hyper, lerp, max_abs, maximum, minimum, ndim, norm, optimizer, require, row_norm, state, where

@optimizer(paper='https://example.org')
def Random(p, g, /, m=state('key_m'), q=state('key_q', shape='scalar'), s=state('key_s', init='lr', shape='scalar', dtype='float32'), *, lr=hyper(0.1)):
    """Drawn by lot.

    Modifiers:

    * skip_nonfinite: Change nothing in a step whose gradients are not all finite.
    * adaptive_clip: Clip the gradient's norm to a share of the weights', by row (AGC; Brock et al., 2021).
    * clip_norm: Scale all gradients so that their norm is at most `max_norm` (Pascanu et al., 2013).
    * trust_ratio: Scale the update to `lr` times the weights' norm, as LAMB does.
    * proximal_decay: Divide the new weights by `1 + lr * decay`, the proximal step of the penalty.
    """
    finite = 0 * max_abs(g, over='all') == 0
    q = where(finite, s + 1, q)
    _update = m
    m = g
    s = q
    p = g
