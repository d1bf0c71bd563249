from optgen.spec import hyper, minimum, modifier, norm


@modifier(stage="clip_tensors")
def clip_tensor_norm(g, /, *, max_tensor_norm=hyper(1.0, gt=0)):
    """Scale each parameter's gradient so that its norm is at most `max_tensor_norm`."""
    g = g * minimum(max_tensor_norm / (norm(g) + 1e-6), 1)
