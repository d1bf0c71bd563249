"""Rules with unusual combinations of features. Tests read them and never run them."""

from optgen.spec import (
    abs,
    clamp,
    exp,
    flag,
    fresh,
    hyper,
    lerp,
    log,
    maximum,
    minimum,
    optimizer,
    sign,
    sqrt,
    state,
    where,
)


@optimizer()
def Lion(
    p,
    g,
    /,
    m=state("exp_avg"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.99), ge=0, lt=1),
    weight_decay=hyper(0.1, ge=0),
):
    """No step count, and a sign (Chen et al., 2023)."""
    beta1, beta2 = betas
    u = sign(beta1 * m + (1 - beta1) * g)
    p = p - lr * (u + weight_decay * p)
    m = beta2 * m + (1 - beta2) * g


@optimizer()
def AveragedSGD(
    p,
    g,
    t,
    /,
    eta=state("eta", shape="scalar", init="lr"),
    mu=state("mu", shape="scalar", init=1.0),
    ax=state("ax", init="p"),
    v=state("v", when="not plain"),
    *,
    lr=hyper(1e-2, ge=0),
    lambd=hyper(1e-4),
    alpha=hyper(0.75),
    t0=hyper(3.0),
    plain=flag(False),
    nest=flag(True),
    clip=hyper(None, optional=True, ge=0),
):
    """Scalar states, a state that a flag removes, an optional number, compound conditions."""
    if clip:
        g = clamp(g, -clip, clip)
    if plain:
        d = g
    else:
        v = lerp(v, abs(g), 0.5)
        d = g / (sqrt(v) + 1)
    if t % 3 == 0 and nest:
        d = 2 * d
    elif t > 4 or not nest:
        d = where(d > 0.5, d, -d)
    p = p * (1 - lambd * eta) - eta * d
    if mu == 1:
        ax = p
    else:
        ax = ax + mu * (p - ax)
    eta = lr / (1 + lambd * lr * t) ** alpha
    mu = 1 / maximum(1, t - t0)


@optimizer()
def NameClashes(
    p,
    g,
    t,
    /,
    b=state("buf"),
    c=state("count", shape="scalar", init=0.0),
    *,
    lr=hyper(1e-2, ge=0),
    tensors=hyper(0.5),
    scalars=hyper(2.0, gt=0),
):
    """Names that kernels use themselves, and literals beside tensors."""
    c = c + 1
    if fresh(b):
        b = g
    else:
        b = tensors * b + g
    mask = exp(-c / scalars)
    lanes = lr * mask * log(1 + t)
    p = p - lanes * b / (abs(b) + 1) - lanes * minimum(b, 0.1) + 0.3 * maximum(g, tensors)


@optimizer()
def Branches(p, g, t, /, v=state("v"), *, lr=hyper(1e-2, ge=0), every=hyper(2.0)):
    """Constants that depend on a branch, and a cube."""
    if t % every == 0:
        scale = 0.5
    else:
        scale = 1
    if not (t < 3 or t > 5):
        v = v + g**3
        u = where(v > g, scale * v, g / (sqrt(v * v) + 1))
    else:
        u = scale * g
    p = p - lr * u
