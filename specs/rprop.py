from optgen.spec import clamp, hyper, optimizer, require, sign, state, where


@optimizer(
    paper="https://doi.org/10.1109/ICNN.1993.298623",
    keywords=(
        "lr",
        "etas",
        "step_sizes",
        "*",
        "capturable",
        "foreach",
        "maximize",
        "differentiable",
    ),
    group=(
        "lr",
        "etas",
        "step_sizes",
        "foreach",
        "maximize",
        "differentiable",
        "capturable",
    ),
    compute_dtype="param",
)
def Rprop(
    p,
    g,
    t,
    /,
    g_prev=state("prev"),
    s=state("step_size", init="lr"),
    *,
    lr=hyper(1e-2, ge=0, tensor="number", about="Size of the first step of every element"),
    etas=hyper(
        (0.5, 1.2), about="Factors of the step size if the gradient's sign changes, and if not"
    ),
    step_sizes=hyper((1e-6, 50), about="Least and largest size of a step"),
):
    """Steps that follow the gradient's sign alone (Riedmiller & Braun, 1993, as RPROP-)."""
    require(0 < etas[0] < 1 < etas[1], "Invalid eta values: {etas[0]}, {etas[1]}")
    eta_minus, eta_plus = etas
    s_min, s_max = step_sizes

    agreement = g * g_prev
    flipped = agreement < 0
    factor = where(agreement > 0, eta_plus, where(flipped, eta_minus, 1))
    s = clamp(s * factor, s_min, s_max)

    g_prev = where(flipped, 0, g)  # 0: no step now, and no comparison in the next step
    p = p - sign(g_prev) * s
