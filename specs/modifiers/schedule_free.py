from optgen.spec import fixed, hyper, lerp, maximum, modifier, rounded, state, where


@modifier(stage="store", weights="z")
def schedule_free(
    p,
    u,
    t,
    lr,
    /,
    z=state("z", init="p", dtype="at_least_float32"),
    largest_rate=state("lr_max", shape="scalar"),
    weight_sum=state("weight_sum", shape="scalar"),
    rest=state("rest", dtype="at_least_float32", when="compensate_average"),
    *,
    average_momentum=hyper(0.9, gt=0, lt=1),
    weight_power=hyper(0, ge=0),
    weight_lr_power=hyper(2, ge=0),
    compensate_average=fixed("narrow"),
):
    """Take gradients between the weights and their average (Defazio et al., 2024)."""
    largest_rate = maximum(largest_rate, lr)
    weight = t**weight_power * largest_rate**weight_lr_power
    weight_sum = weight_sum + weight
    if weight_sum != 0:
        share = weight / weight_sum
    else:
        share = 0
    if compensate_average:
        rest = where(rounded(p + rest) == p, rest, 0)
        average = lerp(p + rest, z, 1 - 1 / average_momentum)
    else:
        average = lerp(p, z, 1 - 1 / average_momentum)
    z = z + u
    p = lerp(lerp(average, z, share), z, 1 - average_momentum)
    if compensate_average:
        y = p
        p = rounded(y)
        rest = y - p


@schedule_free.train
def to_gradient_point(p, z, /, *, average_momentum):
    """Move from the average to the point where gradients are taken."""
    p = lerp(p, z, 1 - average_momentum)


@schedule_free.eval
def to_average(p, z, /, *, average_momentum):
    """Move from the point where gradients are taken to the average."""
    p = lerp(p, z, 1 - 1 / average_momentum)
