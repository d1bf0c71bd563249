from optgen.spec import hyper, lerp, modifier, state


@modifier(stage="average_steps")
def lookahead(
    p,
    u,
    t,
    /,
    slow_weights=state("slow", init="p", dtype="at_least_float32"),
    *,
    sync_period=hyper(5, ge=1, whole=True),
    slow_step=hyper(0.5, gt=0, le=1),
):
    """Move slow weights every few steps, and go on from them (Zhang et al., 2019)."""
    if t % sync_period == 0:
        slow_weights = lerp(slow_weights, p + u, slow_step)
        u = slow_weights - p
