from optgen.spec import hyper, modifier


@modifier(stage="decay")
def decoupled_decay(p, u, lr, /, *, decay=hyper(1e-2, ge=0)):
    """Shrink the weights by `lr * decay`, as AdamW does (Loshchilov & Hutter, 2019)."""
    u = u - lr * decay * p
