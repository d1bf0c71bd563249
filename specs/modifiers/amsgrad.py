from optgen.spec import maximum, modifier, state


@modifier(stage="second_moment")
def amsgrad(v, /, v_max=state("largest_second_moment")):
    """Divide by the largest second moment so far (Reddi et al., 2018)."""
    v_max = maximum(v_max, v)
    v = v_max
