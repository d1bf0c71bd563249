"""DynMuon: Muon whose update keeps a power of the momentum's singular values.

The power falls from 1/4 to -1/4 in the first tenth of the training. The singular values' powers are
two terms of a series, since Newton-Schulz iterations give no singular values.
"""

from optgen.spec import (
    cols,
    hyper,
    identity,
    maximum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    require,
    rows,
    sqrt,
    state,
    transpose,
)


def power_of(gram, exponent):
    """Return the first terms of the series of a power of a Gram matrix, at the identity."""
    e = gram - identity(gram)
    return identity(gram) + exponent * e + 0.5 * exponent * (exponent - 1) * (e @ e)


@optimizer(paper="https://arxiv.org/abs/2605.17109")
def DynMuon(
    p,
    g,
    /,
    m=state("momentum_buffer"),
    *,
    lr=hyper(0.02, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    weight_decay=hyper(0.025, ge=0),
    spectral_power=hyper(0.0),
    batch=hyper(524288, gt=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
):
    """Momentum made orthogonal, times a power of its singular values (2026).

    The gradient is that of a sum over the tokens of a batch, and is divided by their number.
    """
    require(ndim(p) == 2, "DynMuon takes matrices, not the shape {shape}")

    m = momentum * m + g / batch
    u = momentum * m + g / batch
    scale = norm(u) + 1e-7
    x = u / scale
    o = orthogonalize(x / (norm(x) + 1e-7), ns_coefficients, 12, 1)
    if rows(p) > cols(p):
        o = o @ power_of(transpose(x) @ x, spectral_power / 2)
    else:
        o = power_of(x @ transpose(x), spectral_power / 2) @ o
    p = p - lr * weight_decay * p
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * scale**spectral_power * o
