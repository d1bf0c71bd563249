from optgen.spec import modifier, norm, where


@modifier(stage="trust_ratio")
def trust_ratio(p, u, lr, /):
    """Scale the update to `lr` times the weights' norm, as LAMB does."""
    param_norm, update_norm = norm(p), norm(u)
    u = u * where(param_norm > 0 and update_norm > 0, lr * param_norm / update_norm, 1)
