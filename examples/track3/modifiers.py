"""The modifiers of track 3's results that `optgen.modifiers` does not have."""

from optgen.spec import hyper, maximum, modifier, norm, state, sum, where


@modifier(stage="average_steps")
def outer_nesterov(
    p,
    u,
    t,
    /,
    start=state("outer_start", init="p"),
    w=state("outer_momentum"),
    *,
    outer_lr=hyper(0.7, ge=0),
    outer_mu=hyper(0.5, ge=0, lt=1),
    sync_interval=hyper(30, ge=1, whole=True),
):
    """Every `sync_interval` steps, apply Nesterov's momentum to the sum of these steps (MuLoCo)."""
    if t % sync_interval == 0:
        w = outer_mu * w + outer_lr * (start - p - u)
        start = start - outer_mu * w - outer_lr * (start - p - u)
        u = start - p


@modifier(stage="trust_ratio")
def radial_brake(p, u, /, *, outward=hyper(0.5, ge=0)):
    """If the radial component of the update increases the norm, keep its share `outward` only."""
    radial = sum(u * p) / maximum(sum(p * p), 1e-12)
    u = u - where(radial > 0, (1 - outward) * radial, 0) * p


@modifier(stage="project")
def radial_step_norm(p, u, /):
    """Give the new weights the norm that the update's radial component alone would give them."""
    old_norm = maximum(norm(p), 1e-8)
    new_norm = maximum(old_norm + sum(u * p) / old_norm, 1e-8)
    u = (p + u) * (new_norm / maximum(norm(p + u), 1e-8)) - p


@modifier(stage="decay")
def anchor(p, u, t, /, first=state("first_weights", init="p"), *, pull=hyper(1.0, ge=0, le=1)):
    """Pull the weights to their initial values, less in each step (SODA)."""
    u = u - pull / (t + 1) * (p - first)
