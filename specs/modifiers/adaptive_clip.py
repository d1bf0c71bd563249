from optgen.spec import factored, hyper, maximum, modifier, ndim, norm, require, row_norm, where


@modifier(stage="clip_tensors")
def adaptive_clip(
    p,
    g,
    /,
    *,
    clip_factor=hyper(0.01, gt=0),
    clip_eps=hyper(1e-3, gt=0),
):
    """Clip each gradient row's norm to a share of the weight row's (AGC; Brock et al., 2021).

    A vector is clipped as a whole.
    """
    require(ndim(p) <= 2, "adaptive_clip takes rows: give the shape {shape} a view of two axes")
    if factored(p):
        row_limit = clip_factor * maximum(row_norm(p), clip_eps)
        g = where(row_norm(g) < row_limit, g, g * (row_limit / maximum(row_norm(g), 1e-6)))
    else:
        limit = clip_factor * maximum(norm(p), clip_eps)
        g = where(norm(g) < limit, g, g * (limit / maximum(norm(g), 1e-6)))
