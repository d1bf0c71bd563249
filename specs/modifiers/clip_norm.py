from optgen.spec import hyper, minimum, modifier, norm, state


@modifier(stage="clip_all")
def clip_norm(g, /, total_norm=state("grad_norm", shape="all"), *, max_norm=hyper(1.0, gt=0)):
    """Scale all gradients so that their norm is at most `max_norm` (Pascanu et al., 2013).

    The norm before clipping can be read in every param group, under the key "grad_norm".
    """
    total_norm = norm(g, over="all")
    g = g * minimum(max_norm / (total_norm + 1e-6), 1)
