"""AggMo with three momenta, as AtheMathmo/AggMo has it."""

from optgen.spec import hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/1804.00325")
def AggMo(
    p,
    g,
    /,
    b1=state("momentum_buffer_1"),
    b2=state("momentum_buffer_2"),
    b3=state("momentum_buffer_3"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.0, 0.9, 0.99), ge=0, lt=1, about="Fractions of three updates that are kept"),
    weight_decay=hyper(0.0, ge=0),
):
    """The mean of several momenta, of which fast ones damp slow ones (Lucas et al., 2018)."""
    beta1, beta2, beta3 = betas

    if weight_decay:
        g = g + weight_decay * p
    b1 = beta1 * b1 + g
    b2 = beta2 * b2 + g
    b3 = beta3 * b3 + g
    p = p - lr * (b1 + b2 + b3) / 3
