from optgen.spec import hyper, modifier, where


@modifier(stage="decay")
def cautious_decay(p, u, lr, /, *, decay=hyper(1e-2, ge=0)):
    """Shrink only the weights that the update shrinks as well (Chen et al., 2025)."""
    u = u - where(u * p <= 0, lr * decay * p, 0)
