from optgen.spec import hyper, modifier, state, where


@modifier(stage="accumulate", step="count")
def accumulate(
    g,
    t,
    /,
    total=state("grad_sum"),
    summed=state("summed_gradients", shape="scalar"),
    between=state("calls_between_steps", shape="scalar"),
    *,
    accumulated_steps=hyper(1, ge=1, whole=True),
):
    """Step only every few calls, with the mean of the gradients since the last step."""
    total = where(summed == 0, g, total + g)
    summed = summed + 1
    between = between + 1
    if summed >= accumulated_steps:
        between = between - 1
        count = t - between
        g = total / summed
        summed = 0
