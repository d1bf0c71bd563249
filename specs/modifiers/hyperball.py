from optgen.spec import maximum, modifier, norm


@modifier(stage="project")
def hyperball(p, u, lr, /):
    """Keep the weights' norm, and move by `lr` times this norm (Wen et al., 2025)."""
    moved_weights = p + lr * norm(p) * u / maximum(norm(u), maximum(lr * 1e-10, 1e-37))
    u = norm(p) * moved_weights / maximum(norm(moved_weights), 1e-10) - p
