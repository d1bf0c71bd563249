"""Signum, with the decoupled weight decay of MXNet's `wd_lh`."""

from optgen.spec import hyper, optimizer, sign, state


@optimizer(paper="https://arxiv.org/abs/1802.04434")
def Signum(
    p,
    g,
    /,
    m=state("momentum_buffer"),
    *,
    lr=hyper(1e-3, ge=0),
    momentum=hyper(0.9, ge=0, lt=1),
    weight_decay=hyper(0.0, ge=0),
):
    """The sign of momentum; without momentum, signSGD (Bernstein et al., 2018)."""
    p = p - lr * weight_decay * p
    m = momentum * m + (1 - momentum) * g
    p = p - lr * sign(m)
