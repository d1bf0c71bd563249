"""Schedule-Free SGD, as facebookresearch/schedule_free has it.

The authors keep the step count, the largest rate and the sum of weights once for a group. Here each
parameter has its own. They are equal as long as every parameter of the group gets a gradient in
every step.

In train mode the parameter is y, which holds the average. 16 bits cannot hold the average's
increments, so there `rest` has what rounding y loses. It is dropped where y has changed since.
"""

from optgen.spec import fixed, hyper, lerp, maximum, optimizer, rounded, state, where


@optimizer(paper="https://arxiv.org/abs/2405.15682")
def ScheduleFreeSGD(
    p,
    g,
    t,
    /,
    rate_max=state("lr_max", shape="scalar", init=-1),
    weight_sum=state("weight_sum", shape="scalar"),
    z=state("z", init="p", dtype="at_least_float32"),
    rest=state("rest", dtype="at_least_float32", when="compensate"),
    *,
    lr=hyper(1, ge=0),
    momentum=hyper(0.9, gt=0, lt=1),
    weight_decay=hyper(0, ge=0),
    warmup_steps=hyper(0, ge=0),
    r=hyper(0, about="Power of the step count in the weights of the average"),
    weight_lr_power=hyper(2),
    compensate=fixed("narrow"),
):
    """SGD without a schedule: gradients between z and the average (Defazio et al., 2024)."""
    if t < warmup_steps:
        rate = lr * t / warmup_steps
    else:
        rate = lr
    rate_max = maximum(rate_max, rate)
    weight = t**r * rate_max**weight_lr_power
    weight_sum = weight_sum + weight
    if weight_sum != 0:
        c = weight / weight_sum
    else:
        c = 0

    if weight_decay:
        g = g + weight_decay * p
    step = rate * (1 - momentum * (1 - c)) * g
    if compensate:
        rest = where(rounded(p + rest) == p, rest, 0)
        y = lerp(p + rest, z, c) - step
        p = rounded(y)
        rest = y - p
    else:
        p = lerp(p, z, c) - step
    z = z - rate * g


@ScheduleFreeSGD.train
def to_gradient_point(p, z, /, *, momentum):
    """Move from the average to the point where gradients are taken."""
    p = lerp(p, z, 1 - momentum)


@ScheduleFreeSGD.eval
def to_average(p, z, /, *, momentum):
    """Move from the point where gradients are taken to the average."""
    p = lerp(p, z, 1 - 1 / momentum)
