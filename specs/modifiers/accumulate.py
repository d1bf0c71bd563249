from optgen.spec import hyper, modifier, state


@modifier(stage="accumulate", step="count")
def accumulate(g, t, /, total=state("grad_sum"), *, accumulated_steps=hyper(1, ge=1)):
    """Step only every few calls, with the mean of the gradients since the last step."""
    total = total + g
    count = t / accumulated_steps
    if t % accumulated_steps == 0:
        g = total / accumulated_steps
        total = 0 * total
