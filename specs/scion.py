"""Scion, as LIONS-EPFL/scion has it, for matrices and vectors.

A convolution takes a flat view, such as `"view": (channels, -1)`. The authors take smaller steps
for convolutions: divide `scale` by the square root of the kernel's size, 3 for 3 x 3.

The authors' divisors are at least 1e-7 for matrices and 1e-8 for vectors, which shortens the steps
of small gradients.
"""

from optgen.spec import (
    choice,
    clamp,
    cols,
    factored,
    flag,
    hyper,
    lerp,
    max_abs,
    maximum,
    ndim,
    optimizer,
    orthogonalize,
    require,
    rms,
    rows,
    sign,
    sqrt,
    state,
)

TINY = 2.0**-126  # the smallest normal number of float32 and bfloat16


@optimizer(paper="https://arxiv.org/abs/2502.07529")
def Scion(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    *,
    lr=hyper(1e-3, ge=0),
    momentum=hyper(1.0, gt=0, le=1, about="Weight of the newest gradient; 0.1 is usual"),
    scale=hyper(1.0, gt=0, about="Radius of the norm ball"),
    norm=choice("Auto", "Sign", about="Norm of matrices: spectral, or the largest element"),
    unconstrained=flag(False, about="Do not shrink the weights into the ball"),
    ns_coefficients=hyper((3.4445, -4.7750, 2.0315)),
    ns_steps=hyper(5, ge=1, lt=100, whole=True),
    eps=hyper(1e-30, gt=0, about="The least size that the momentum is divided by"),
):
    """Steps to the boundary of a norm ball, along the momentum (Pethick et al., 2025)."""
    require(ndim(p) <= 2, "Scion takes matrices and vectors, not the shape {shape}")

    b = lerp(b, g, momentum)
    if factored(p):
        if norm == "Sign":
            u = sign(b) / cols(p)
        else:
            u = sqrt(rows(p) / cols(p)) * orthogonalize(b, ns_coefficients, ns_steps, eps)
    else:
        size = maximum(max_abs(b), TINY)
        u = clamp(b / size, -1, 1)  # squares neither overflow nor vanish
        u = u / (rms(u) + eps / size)
    if not unconstrained:
        p = p - lr * p
    p = p - lr * scale * u
