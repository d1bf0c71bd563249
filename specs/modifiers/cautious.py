from optgen.spec import maximum, mean, modifier, where


@modifier(stage="mask")
def cautious(g, u, /):
    """Drop the parts of the update that go against the gradient (Liang et al., 2024)."""
    kept = where(u * g < 0, 1, 0)
    u = u * kept / maximum(mean(kept), 1e-3)
