"""The modifiers of track 3's results that `optgen.modifiers` does not have."""

from optgen.spec import hyper, lerp, maximum, modifier, norm, state, sum, where


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


def with_radial_norm(p, u):
    """Return the new weights, with the norm that the update's radial component would give them."""
    old_norm = maximum(norm(p), 1e-8)
    new_norm = maximum(old_norm + sum(u * p) / old_norm, 1e-8)
    return (p + u) * (new_norm / maximum(norm(p + u), 1e-8))


@modifier(stage="project")
def radial_step_norm(p, u, /):
    """Give the new weights the norm that the update's radial component alone would give them."""
    u = with_radial_norm(p, u) - p


@modifier(stage="project")
def radial_step_and_decay(p, u, lr, /, *, cautious_decay=hyper(0.025, ge=0)):
    """Do as `radial_step_norm`, and then shrink the weights that the update shrinks."""
    w = with_radial_norm(p, u)
    u = where(u * p < 0, (1 - lr * cautious_decay) * w, w) - p


@modifier(stage="decay")
def anchor(p, u, t, /, first=state("first_weights", init="p"), *, pull=hyper(1.0, ge=0, le=1)):
    """Pull the weights to their initial values, less in each step (SODA)."""
    u = u - pull / (t + 1) * (p - first)


@modifier(stage="average_steps")
def ema_nesterov_tail(
    p,
    u,
    /,
    last_weights=state("last_weights", init="p"),
    mean_move=state("mean_move"),
    tail=state("tail_mean", init="p"),
    *,
    look_ahead=hyper(0.3, ge=0),
    move_decay=hyper(0.99, ge=0, lt=1),
    tail_share=hyper(1.0, ge=0, le=1),
    readout=hyper(0.6, ge=0, le=1),
):
    """Do as `optgen.modifiers.ema_nesterov`, and evaluate nearer to a mean of the last weights.

    New weights have the share `tail_share` of this mean. `eval()` moves the weights to the mean by
    the part `readout` of the way.
    """
    new_weights = p + u
    mean_move = lerp(mean_move, new_weights - last_weights, 1 - move_decay)
    last_weights = new_weights
    tail = lerp(tail, new_weights, tail_share)
    u = new_weights + look_ahead * mean_move - p


@ema_nesterov_tail.eval
def to_readout(p, last_weights, tail, /, *, readout):
    """Move from the point ahead to the readout."""
    p = lerp(last_weights, tail, readout)


@ema_nesterov_tail.train
def to_point_ahead(p, last_weights, mean_move, /, *, look_ahead):
    """Move from the readout to the point ahead."""
    p = last_weights + look_ahead * mean_move
