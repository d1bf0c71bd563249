# lowering: 'fused_triton'
# kind: 'crashed'
# message: 'InterpreterError: NameError("name \'param_row_sum2\' is not defined") (bucket.py)'
# hypers: {}
# shapes: ((1, 4),)
# dtype: 'float64'
# seed: 561
from optgen.spec import *


@optimizer(paper="https://example.org")
def Random(
    p,
    g,
    /,
    q=state("key_q", shape="scalar"),
    s=state("key_s", shape="scalar"),
    k=state("key_k", shape="col"),
    w=state("key_w"),
    m=state("key_m"),
    *,
    betas=hyper((0.5, 0.75)),
    fa=flag(False),
):
    """Drawn by lot."""
    require(ndim(p) > 1, "{shape}")
    _beta1, _beta2 = betas
    q, s = (s, q)
    _ok = fa
    k = 0.5 * k
    if fa:
        w = w + where(row_sum(p) > g, m, m) * g
    m = where(g * k, rms(row_sum(p) / cols(p) * k), g)
    p = g
