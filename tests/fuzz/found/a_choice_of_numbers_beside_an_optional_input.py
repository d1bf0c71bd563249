# lowering: 'foreach'
# kind: 'crashed'
# message: 'IndexError: list index out of range (foreach.py)'
# hypers: {}
# shapes: ((1,),)
# dtype: 'float64'
# seed: 274
# viewed: False
from optgen.spec import abs, exp, factored, fresh, given, hyper, lerp, log, maximum, mean, ndim, optimizer, sign, sqrt, state, sum, tanh, where

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, q=state('key_q', shape='scalar'), x_master=state('master', dtype='float32')):
    """Drawn by lot.

    Modifiers:

    * cautious: Zero the elements of the update that have the gradient's sign (Liang et al., 2024).
    * lookahead: Every few steps, let slow weights follow, and go on from them (Zhang et al., 2019).
    * master: Keep the weights in float32; the parameter is rounded (Micikevicius et al., 2018).
    * ema: Average the weights exponentially (Polyak & Juditsky, 1992), as AveragedModel does.
    """
    if given(hz):
        g = x_master / hz
    _a2 = q
    q = 2
    update = g - sum(g)
    kept = where(update * g, 1, 0)
    update = kept
    x_master = update
    p = g
