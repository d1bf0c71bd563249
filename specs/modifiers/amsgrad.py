from optgen.spec import maximum, modifier, state


@modifier(stage="second_moment")
def amsgrad(v, /, largest=state("largest_second_moment")):
    """Divide by the largest second moment so far (Reddi et al., 2018)."""
    largest = maximum(largest, v)
    v = largest
