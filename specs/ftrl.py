"""FTRL-Proximal, as pytorch_optimizer and TensorFlow have it."""

from optgen.spec import abs, hyper, optimizer, sign, sqrt, state, where


@optimizer(paper="https://research.google.com/pubs/archive/41159.pdf")
def FTRL(
    p,
    g,
    /,
    z=state("z", dtype="at_least_float32"),
    n=state("n", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, gt=0),
    beta=hyper(0.0, ge=0),
    lambda_1=hyper(0.0, ge=0, about="Strength of the penalty that makes weights 0"),
    lambda_2=hyper(0.0, ge=0, about="Strength of the squared penalty"),
):
    """Sparse weights by the regularised leader of all gradients (McMahan et al., 2013)."""
    n_old = n
    n = n + g**2
    z = z + g - (sqrt(n) - sqrt(n_old)) / lr * p
    strength = (sqrt(n) + beta) / lr + lambda_2
    p = where(abs(z) <= lambda_1, 0, (lambda_1 * sign(z) - z) / strength)
