# lowering: 'forloop'
# kind: 'crashed'
# message: "UnboundLocalError: cannot access local variable 'key_q' where it is not associated with a value (call.py)"
# hypers: {}
# shapes: ((2, 3), (1, 4))
# dtype: 'float64'
# seed: 559
# viewed: False
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(
    p, g, /,
    s=state("key_s", init=0.5, shape="scalar"),
    q=state("key_q", init=0, shape="scalar"),
    *,
    lr=hyper(0.1, ge=0),
):
    """Drawn by lot."""
    q = +q
    a2 = s
    s = q
    q = q / numel(p)
    p = p - lr * g * (1 + a2) * q
