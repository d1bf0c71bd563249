# lowering: 'fused_triton'
# kind: 'wrong'
# message: 'the parameter is 0.2330074828341407, expected -0.48277996460251665 with an error of at most 7.3e-15, element 0 of 3, step 1, parameter 0'
# hypers: {}
# shapes: ((3, 1),)
# dtype: 'float64'
# seed: 944
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(p, g, /, k=state("key_k"), m=state("key_m"), v=state("key_v"), w=state("key_w")):
    """Drawn by lot."""
    d = p
    k = g
    w = 0.5 * w
    m = minimum(rms(g), d)
    if factored(p):
        w = v * row_mean(m)
        p = m + row_mean(v) * k
    v = p
