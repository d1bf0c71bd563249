from optgen.spec import modifier


@modifier(stage="observe", zero_grad=True)
def zero_grad():
    """Leave the gradients at zero, so that training need not call `zero_grad`."""
