# lowering: 'forloop'
# kind: 'crashed'
# message: 'RuntimeError: expected dtype c10::BFloat16 for `end` but got dtype float (unfused.py)'
# hypers: {}
# shapes: ((1, 4), (2, 3))
# dtype: 'bfloat16'
# seed: 709
from optgen.spec import *

@optimizer(paper='https://example.org')
def Random(p, g, t, /, *, lr=hyper(0.1, ge=0)):
    """In the first step the gradient has the dtype of the sum, in later steps its own."""
    x = g
    if factored(p):
        g = g - row_sum(p)
    if t > 1:
        g = x / (sqrt(x**2) + 0.25)
    p = p - lr * lerp(x, g, 0.5)
