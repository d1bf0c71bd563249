from optgen.spec import hyper, lerp, modifier, state


@modifier(stage="average_steps")
def ema_nesterov(
    p,
    u,
    /,
    last_weights=state("last_weights", init="p", dtype="at_least_float32"),
    mean_move=state("mean_move", dtype="at_least_float32"),
    *,
    look_ahead=hyper(0.3, ge=0),
    move_decay=hyper(0.99, ge=0, lt=1),
):
    """Take gradients at a point ahead of the weights, along their mean move (arXiv 2605.25395).

    `optimizer.eval()` puts the weights themselves into the parameters, and `optimizer.train()` puts
    the point ahead back into them.
    """
    new_weights = p + u
    mean_move = lerp(mean_move, new_weights - last_weights, 1 - move_decay)
    last_weights = new_weights
    u = new_weights + look_ahead * mean_move - p


@ema_nesterov.eval
def to_weights(p, last_weights, /):
    """Swap the point ahead and the weights."""
    p, last_weights = last_weights, p


@ema_nesterov.train
def to_point_ahead(p, last_weights, /):
    """Swap the weights and the point ahead."""
    p, last_weights = last_weights, p
