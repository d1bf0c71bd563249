# lowering: 'foreach'
# kind: 'wrong'
# message: 'key_f2 is 0.6000000238418579, expected 0.6 with an error of at most 2.1e-15, element 0 of 1, step 1, parameter 0'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'bfloat16'
# seed: 576
# viewed: False
from optgen.spec import factored, hyper, mean, optimizer, singular_vectors, state, transpose, where

@optimizer(paper='https://example.org')
def Random(p, g, /, f2=state('key_f2', init='lr', shape='scalar'), J0=state('key_J0', shape=('cols', 'rank'), when='factored'), v=state('key_v'), *, lr=hyper(0.1), rank=hyper(2, ge=1)):
    """Drawn by lot."""
    f2 = f2 + where(mean(v), 2, 0.5)
    if factored(p):
        J0 = 0.5 * J0 + transpose(v) @ singular_vectors(v, rank)
    v = g
    p = g
