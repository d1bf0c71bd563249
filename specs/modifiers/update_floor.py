from optgen.spec import factored, flag, hyper, maximum, modifier, norm, row_norm


@modifier(stage="trust_ratio")
def update_floor(p, u, lr, /, *, least_ratio=hyper(0.35, ge=0), by_row=flag(False)):
    """Scale smaller updates up to `least_ratio * lr` times the weights' norm.

    With `by_row`, scale each row of a matrix by itself. An update of zeros stays zero.
    """
    ratio = least_ratio * lr
    if by_row and factored(p):
        u = u * maximum(ratio * row_norm(p) / maximum(row_norm(u), 1e-30), 1)
    else:
        u = u * maximum(ratio * norm(p) / maximum(norm(u), 1e-30), 1)
