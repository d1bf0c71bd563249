from optgen.spec import modifier, state


@modifier(stage="observe")
def low_precision_copy(p, /, low_precision=state("low_precision", init="p", dtype="bfloat16")):
    """Keep the weights in bfloat16 too, for a forward pass that reads half of the memory."""
    low_precision = p
