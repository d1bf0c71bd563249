from optgen.spec import hyper, lerp, modifier, state


@modifier(stage="average_steps")
def ema_nesterov(
    p,
    u,
    /,
    last=state("last_weights", init="p"),
    move=state("mean_move"),
    *,
    look_ahead=hyper(0.3, ge=0),
    move_decay=hyper(0.99, ge=0, lt=1),
):
    """Take gradients ahead of the weights, along their mean move (arXiv 2605.25395).

    `optimizer.eval()` puts the weights themselves into the parameters, and `optimizer.train()` goes
    ahead again.
    """
    new = p + u
    move = lerp(move, new - last, 1 - move_decay)
    last = new
    u = new + look_ahead * move - p


@ema_nesterov.eval
def to_weights(p, last, /):
    """Swap the point ahead and the weights."""
    p, last = last, p


@ema_nesterov.train
def to_point_ahead(p, last, /):
    """Swap the weights and the point ahead."""
    p, last = last, p
