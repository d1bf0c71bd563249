"""Gaussian noise on the gradient that decays with the steps: https://arxiv.org/abs/1511.06807."""

from optgen.spec import cos, hyper, log, modifier, random, sqrt, state

TWO_PI = 6.283185307179586


@modifier(stage="noise")
def gradient_noise(
    g,
    t,
    /,
    k=state("noise_stream", shape="scalar", init="index"),
    *,
    noise_eta=hyper(0.01, ge=0, about="Variance of the noise before it decays"),
    noise_gamma=hyper(0.55, ge=0, about="How fast the variance decays"),
    noise_seed=hyper(0, ge=0, whole=True, about="Seed of the noise"),
):
    """Add noise of variance eta / (1 + t)^gamma to every element of the gradient."""
    radius = sqrt(-2 * log(1 - random(noise_seed, k)))
    normal = radius * cos(TWO_PI * random(noise_seed, k))
    g = g + sqrt(noise_eta / (1 + t) ** noise_gamma) * normal
