from optgen.spec import clamp, hyper, modifier


@modifier(stage="clip_elements")
def clip_value(g, /, *, max_value=hyper(1.0, gt=0)):
    """Clamp every element of the gradient to `max_value` in size, as clip_grad_value_ does."""
    g = clamp(g, -max_value, max_value)
