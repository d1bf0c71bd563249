# lowering: 'fused_cpu'
# kind: 'does not compile'
# message: 'redeclaration of ‘const double step’'
# hypers: {}
# shapes: ((),)
# dtype: 'float64'
# seed: 672
# viewed: False
from optgen.spec import factored, given, hyper, optimizer, state

@optimizer(paper='https://example.org')
def Random(p, g, t, hz=given('extra'), /, H0=state('key_H0', shape=('rows', 'rank'), when='factored'), *, rank=hyper(2, ge=1)):
    """Drawn by lot."""
    update = hz
    if factored(p):
        H0 = 0.5 * H0
    update = 2 * (g + t) ** 2
    p = update
