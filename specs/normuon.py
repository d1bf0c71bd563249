"""NorMuon: Muon with a second moment for each row of the orthogonal update."""

from optgen.spec import (
    cols,
    hyper,
    maximum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    require,
    row_mean,
    rows,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2510.05491")
def NorMuon(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    v=state("second_momentum_buffer", shape="row"),
    *,
    lr=hyper(2e-2, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    beta2=hyper(0.95, ge=0, lt=1),
    weight_decay=hyper(0.0, ge=0),
    eps=hyper(1e-10, ge=0),
    polar_express=hyper(
        (
            8.156554524902461 / 1.02,
            -22.48329292557795 / 1.02**3,
            15.878769915207462 / 1.02**5,
            4.042929935166739,
            -2.808917465908714,
            0.5000178451051316,
            3.8916678022926607,
            -2.772484153217685,
            0.5060648178503393,
            3.285753657755655,
            -2.3681294933425376,
            0.46449024233003106,
            2.3465413258596377,
            -1.7097828382687081,
            0.42323551169305323,
        )
    ),
):
    """Muon whose rows keep their sizes, by Polar Express (Li et al., 2025)."""
    require(ndim(p) == 2, "NorMuon takes matrices, not the shape {shape}")

    b = momentum * b + (1 - momentum) * g
    o = orthogonalize((1 - momentum) * g + momentum * b, polar_express, 5, 1e-7)
    v = beta2 * v + (1 - beta2) * row_mean(o**2)
    u = o / (sqrt(v) + eps)
    u = u * norm(o) / (norm(u) + eps)
    p = p - lr * weight_decay * p
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * u
