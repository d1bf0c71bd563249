from optgen.spec import maximum, modifier, state


@modifier(stage="second_moment")
def amsgrad(v, /, largest=state("largest_second_moment")):
    """Use the largest second moment so far, so that steps only shrink (Reddi et al., 2018)."""
    largest = maximum(largest, v)
    v = largest
