from optgen.spec import hyper, modifier, state, where


@modifier(stage="accumulate", step="count")
def accumulate(
    g,
    t,
    /,
    gradient_sum=state("grad_sum", dtype="at_least_float32"),
    gradient_count=state("summed_gradients", shape="scalar"),
    waiting_calls=state("calls_between_steps", shape="scalar"),
    *,
    accumulated_steps=hyper(1, ge=1, whole=True),
):
    """Step only every few calls, with the mean of the gradients since the last step."""
    gradient_sum = where(gradient_count == 0, g, gradient_sum + g)
    gradient_count = gradient_count + 1
    waiting_calls = waiting_calls + 1
    if gradient_count >= accumulated_steps:
        waiting_calls = waiting_calls - 1
        count = t - waiting_calls
        g = gradient_sum / gradient_count
        gradient_count = 0
