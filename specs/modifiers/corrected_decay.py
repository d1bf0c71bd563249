from optgen.spec import hyper, modifier


@modifier(stage="decay")
def corrected_decay(p, u, lr, /, *, decay=hyper(1e-2, ge=0), max_lr=hyper(1e-3, gt=0)):
    """Shrink the weights in proportion to the square of `lr` (AdamC; Defazio, 2025)."""
    u = u - lr**2 / max_lr * decay * p
