"""Tiger, as bojone/tiger has it, with one learning rate for all parameters."""

from optgen.spec import hyper, optimizer, sign, state


@optimizer(paper="https://github.com/bojone/tiger")
def Tiger(
    p,
    g,
    /,
    m=state("exp_avg"),
    *,
    lr=hyper(1e-3, ge=0),
    beta=hyper(0.965, ge=0, lt=1),
    weight_decay=hyper(0.01, ge=0),
):
    """Lion with one beta: the step is the sign of the new momentum (Su, 2023)."""
    m = beta * m + (1 - beta) * g
    p = p - lr * (sign(m) + weight_decay * p)
