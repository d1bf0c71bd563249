from optgen.spec import fresh, hyper, lerp, modifier, state


@modifier(stage="observe")
def ema(
    p, /, average=state("ema", dtype="at_least_float32"), *, ema_decay=hyper(0.999, ge=0, le=1)
):
    """Average the weights exponentially (Polyak & Juditsky, 1992), as AveragedModel does.

    `optimizer.eval()` puts the average into the weights, and `optimizer.train()` takes it out.
    """
    if fresh(average):
        share = 1
    else:
        share = 1 - ema_decay
    average = lerp(average, p, share)


@ema.eval
def to_average(p, average, /):
    """Swap the weights and their average."""
    p, average = average, p


@ema.train
def to_weights(p, average, /):
    """Swap the average and the weights."""
    p, average = average, p
