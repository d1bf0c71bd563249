from optgen.spec import hyper, modifier


@modifier(stage="decay")
def proximal_decay(p, u, lr, /, *, decay=hyper(1e-2, ge=0)):
    """Divide the new weights by `1 + lr * decay`, the proximal step of the penalty."""
    u = (u - lr * decay * p) / (1 + lr * decay)
