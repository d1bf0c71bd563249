# lowering: 'fused_triton'
# kind: 'wrong'
# message: "InterpreterError: ValueError('Cannot make_shape_compatible: incompatible dimensions at index 1: 2 and 4') (bucket.py)"
# hypers: {}
# shapes: ((2, 3),)
# dtype: 'float64'
# seed: 3
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(
    p,
    g,
    /,
    r=state("key_r", init=0.5, shape="row"),
    k=state("key_k", init=0.25, shape="col"),
):
    """Drawn by lot."""
    require(ndim(p) > 1, "{shape}")
    e = rms(r * k)
    f = row_sum(r * k)
    h = max_abs(r + k)
    r = r + 0.5 * f
    k = k + 0.25
    p = p - e * g + h * r * k
