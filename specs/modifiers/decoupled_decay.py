from optgen.spec import hyper, modifier


@modifier(stage="decay")
def decoupled_decay(p, u, lr, /, *, decay=hyper(1e-2, ge=0)):
    """Shrink the weights beside the update (Loshchilov & Hutter, 2019)."""
    u = u - lr * decay * p
