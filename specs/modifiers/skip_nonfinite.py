from optgen.spec import max_abs, modifier, state, where


@modifier(stage="skip", step="count", guard="finite")
def skip_nonfinite(g, t, /, skipped_steps=state("skipped_steps", shape="scalar")):
    """Change nothing in a step whose gradients are not all finite."""
    finite = 0 * max_abs(g, over="all") == 0
    skipped_steps = where(finite, skipped_steps, skipped_steps + 1)
    count = t - skipped_steps
