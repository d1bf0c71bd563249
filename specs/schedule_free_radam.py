"""Schedule-Free RAdam, as facebookresearch/schedule_free has it.

The authors keep the step count, the largest rate and the sum of weights once for a group. Here each
parameter has its own. They are equal as long as every parameter of the group gets a gradient in
every step.

In train mode the parameter is y, which holds the average. 16 bits cannot hold the average's
increments, so there `rest` has what rounding y loses. It is dropped where y has changed since.
"""

from optgen.spec import fixed, flag, hyper, lerp, maximum, optimizer, rounded, sqrt, state, where


@optimizer(paper="https://arxiv.org/abs/2405.15682")
def ScheduleFreeRAdam(
    p,
    g,
    t,
    /,
    rate_max=state("lr_max", shape="scalar", init=-1),
    weight_sum=state("weight_sum", shape="scalar"),
    z=state("z", init="p", dtype="at_least_float32"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    rest=state("rest", dtype="at_least_float32", when="compensate"),
    *,
    lr=hyper(2.5e-3, ge=0),
    betas=hyper((0.9, 0.999), gt=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0, ge=0),
    r=hyper(0, about="Power of the step count in the weights of the average"),
    weight_lr_power=hyper(2),
    compensate=fixed("narrow"),
    silent_sgd_phase=flag(True, about="Take no step while RAdam's variance is unknown"),
):
    """RAdam without a schedule: gradients between z and the average (Defazio et al., 2024)."""
    beta1, beta2 = betas

    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
    if rho > 4:
        numerator = (rho - 4) * (rho - 2) * rho_inf
        denominator = (rho_inf - 4) * (rho_inf - 2) * rho
        rate = lr * sqrt(numerator / denominator)
    elif silent_sgd_phase:
        rate = 0
    else:
        rate = lr
    rate_max = maximum(rate_max, rate)
    weight = t**r * rate_max**weight_lr_power
    weight_sum = weight_sum + weight
    if weight_sum != 0:
        c = weight / weight_sum
    else:
        c = 0

    v = beta2 * v + (1 - beta2) * g**2
    if rho > 4:
        u = g / (sqrt(v / (1 - beta2**t)) + eps)
    else:
        u = g
    if weight_decay:
        u = u + weight_decay * p
    step = rate * (1 - beta1 * (1 - c)) * u
    if compensate:
        rest = where(rounded(p + rest) == p, rest, 0)
        y = lerp(p + rest, z, c) - step
        p = rounded(y)
        rest = y - p
    else:
        p = lerp(p, z, c) - step
    z = z - rate * u


@ScheduleFreeRAdam.train
def to_gradient_point(p, z, /, *, betas):
    """Move from the average to the point where gradients are taken."""
    p = lerp(p, z, 1 - betas[0])


@ScheduleFreeRAdam.eval
def to_average(p, z, /, *, betas):
    """Move from the point where gradients are taken to the average."""
    p = lerp(p, z, 1 - 1 / betas[0])
