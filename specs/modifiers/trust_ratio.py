from optgen.spec import modifier, norm, where


@modifier(stage="trust_ratio")
def trust_ratio(p, u, lr, /):
    """Let the update's norm be the learning rate's share of the weights' norm, as LAMB does."""
    size, length = norm(p), norm(u)
    u = u * where(size > 0 and length > 0, lr * size / length, 1)
