"""Muon with Polar Express: five different polynomials, each written out with products.

The authors' `eps` is 1e-6, which shortens the steps of small gradients.
"""

from optgen.spec import (
    clamp,
    cols,
    hyper,
    max_abs,
    maximum,
    ndim,
    norm,
    optimizer,
    require,
    rows,
    sqrt,
    state,
    transpose,
)

TINY = 2.0**-126  # the smallest normal number of float32


def odd_polynomial(x, a, b, c):
    """Return an odd polynomial of degree 5 of a matrix."""
    gram = x @ transpose(x)
    return a * x + (b * gram + c * gram @ gram) @ x


@optimizer(paper="https://arxiv.org/abs/2505.16932")
def PolarMuon(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    *,
    lr=hyper(2e-2, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    weight_decay=hyper(0.0, ge=0),
    eps=hyper(1e-30, gt=0, about="Added to the norm that an update is divided by"),
):
    """Momentum made orthogonal by polynomials that converge fastest (Amsel et al., 2025)."""
    require(ndim(p) == 2, "PolarMuon takes matrices, not the shape {shape}")

    b = momentum * b + (1 - momentum) * g
    x = (1 - momentum) * g + momentum * b
    scale = maximum(max_abs(x), TINY)
    x = clamp(x / scale, -1, 1)  # squares neither overflow nor vanish
    x = x / (1.02 * norm(x) + eps / scale)
    x = odd_polynomial(x, 8.156554524902461, -22.48329292557795, 15.878769915207462)
    x = odd_polynomial(x, 4.042929935166739, -2.808917465908714, 0.5000178451051316)
    x = odd_polynomial(x, 3.8916678022926607, -2.772484153217685, 0.5060648178503393)
    x = odd_polynomial(x, 3.285753657755655, -2.3681294933425376, 0.46449024233003106)
    x = odd_polynomial(x, 2.3465413258596377, -1.7097828382687081, 0.42323551169305323)
    p = p - lr * weight_decay * p
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * x
