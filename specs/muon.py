"""Muon, in torch's form: momentum is a running mean, and weight decay is not adjusted to shapes."""

from optgen.spec import (
    choice,
    cols,
    flag,
    hyper,
    lerp,
    maximum,
    ndim,
    optimizer,
    orthogonalize,
    require,
    rows,
    sqrt,
    state,
)


@optimizer(
    paper="https://kellerjordan.github.io/posts/muon/",
    group=(
        "lr",
        "weight_decay",
        "momentum",
        "nesterov",
        "ns_coefficients",
        "eps",
        "ns_steps",
        "adjust_lr_fn",
    ),
    compute_dtype="param",
)
def Muon(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    *,
    lr=hyper(1e-3, ge=0, tensor="number", error="Learning rate should be >= 0 but is: {}"),
    weight_decay=hyper(0.1, ge=0, error="weight decay should be >= 0 but is: {}"),
    momentum=hyper(0.95, ge=0, error="momentum should be >= 0 but is: {}"),
    nesterov=flag(True, about="Look ahead along the momentum, after Nesterov"),
    ns_coefficients=hyper(
        (3.4445, -4.7750, 2.0315),
        about="Coefficients of the polynomial of a Newton-Schulz iteration",
    ),
    eps=hyper(
        1e-7,
        about="The least norm that an update is divided by. Smaller updates give shorter steps; "
        "1e-30 gives steps of full length",
    ),
    ns_steps=hyper(
        5,
        lt=100,
        error="Number of steps must be less than 100 for computational efficiency",
        about="How many Newton-Schulz iterations to take",
    ),
    adjust_lr_fn=choice(
        None,
        "original",
        "match_rms_adamw",
        "spectral_unclamped",
        error="Adjust learning rate function {} is not supported",
        about="How a step is scaled: by the root of rows over columns, but at least 1 ('original' "
        "and None), to the size of AdamW's steps, or by that root alone",
    ),
):
    """Momentum made orthogonal, for the matrices of hidden layers (Jordan et al., 2024)."""
    require(
        ndim(p) == 2,
        "Muon only supports 2D parameters whereas we found a parameter with size: {shape}",
    )

    b = lerp(b, g, 1 - momentum)
    if nesterov:
        u = lerp(g, b, momentum)
    else:
        u = b
    o = orthogonalize(u, ns_coefficients, ns_steps, eps)

    if adjust_lr_fn == "match_rms_adamw":
        scale = 0.2 * sqrt(maximum(rows(p), cols(p)))
    elif adjust_lr_fn == "spectral_unclamped":
        scale = sqrt(rows(p) / cols(p))
    else:
        scale = sqrt(maximum(1, rows(p) / cols(p)))
    p = p - lr * weight_decay * p
    p = p - lr * scale * o
