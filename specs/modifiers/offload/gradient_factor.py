from optgen.spec import hyper, modifier


@modifier(stage="clip_elements")
def gradient_factor(g, /, *, gradient_factor=hyper(1.0)):
    """Multiply the gradient by a number that is known before the step."""
    g = g * gradient_factor
