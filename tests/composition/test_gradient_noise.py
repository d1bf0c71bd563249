"""Test that gradient noise is Gaussian, decays as in the paper, and depends on the seed."""

import copy

import pytest
import torch

import optgen
from optgen import compose, modifiers
from optgen.optim import AdamW

LOWERINGS = ("forloop", "foreach", "fused_cpu")
NoisySGD = compose("sgd", modifiers.gradient_noise)


def noise_by_step(
    steps, lowering="fused_cpu", shapes=((200, 200),), dtype=torch.float64, **options
):
    """Return, for each step, each parameter's noise: SGD with lr=1 subtracts it from zeros."""
    params = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    optimizer = NoisySGD(params, lr=1.0, **options)
    results = []
    with optgen.use_lowering(lowering):
        for _ in range(steps):
            for param in params:
                param.detach().zero_()
                param.grad = torch.zeros_like(param)
            optimizer.step()
            results.append([-param.detach().clone() for param in params])
    return results


def test_the_variance_is_that_of_the_paper():
    results = noise_by_step(10, noise_eta=0.3, noise_gamma=0.7)
    for t in (1, 10):
        noise = results[t - 1][0]
        variance = 0.3 / (1 + t) ** 0.7
        assert noise.var().item() == pytest.approx(variance, rel=0.03)
        assert abs(noise.mean().item()) < 4 * (variance / noise.numel()) ** 0.5


def test_the_defaults_are_those_of_the_paper():
    group = NoisySGD([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]
    assert (group["noise_eta"], group["noise_gamma"], group["noise_seed"]) == (0.01, 0.55, 0)


def test_the_noise_is_gaussian():
    noise = noise_by_step(1, noise_eta=1.0, noise_gamma=0.0)[0][0].flatten()
    for bound in (-2.0, -1.0, 0.0, 0.5, 1.5):
        probability = torch.special.ndtr(torch.tensor(bound)).item()
        assert (noise < bound).double().mean().item() == pytest.approx(probability, abs=0.012)


def test_noise_depends_on_the_seed_the_parameter_and_the_step():
    shapes = ((50, 40), (50, 40))
    first, again, other = (noise_by_step(2, shapes=shapes, noise_seed=s) for s in (5, 5, 6))
    assert all(map(torch.equal, [*first[0], *first[1]], [*again[0], *again[1]]))
    noises = [*first[0], *first[1], *other[0], *other[1]]
    correlations = torch.corrcoef(torch.stack([noise.flatten() for noise in noises]))
    assert (correlations - torch.eye(len(noises))).abs().max() < 0.12


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_step_equals_a_plain_step_by_gradients_with_noise(lowering):
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(7, 5)), torch.nn.Parameter(torch.randn(3))]
    plain_params = copy.deepcopy(params)
    options = {"noise_eta": 0.5, "noise_gamma": 0.3, "noise_seed": 9}
    results = noise_by_step(5, lowering, shapes=((7, 5), (3,)), dtype=torch.float32, **options)
    composed = compose(AdamW, modifiers.gradient_noise)(params, lr=0.1, **options)
    plain = torch.optim.AdamW(plain_params, lr=0.1)
    with optgen.use_lowering(lowering):
        for noises in results:
            for param, plain_param, noise in zip(params, plain_params, noises, strict=True):
                param.grad = torch.randn_like(param)
                plain_param.grad = param.grad + noise
            composed.step()
            plain.step()
    torch.testing.assert_close(params, plain_params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lowerings_agree_within_rounding(dtype):
    """Uniform numbers have equal bits; each lowering has its own library's logarithm and cosine."""
    first, *others = (
        noise_by_step(3, lowering, dtype=dtype, noise_eta=1.0) for lowering in LOWERINGS
    )
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert (a[0] - b[0]).abs().max() <= 8 * torch.finfo(dtype).eps


def test_a_run_from_a_checkpoint_continues_with_the_same_noise():
    def run(param, optimizer, steps):
        for _ in range(steps):
            param.grad = torch.ones_like(param)
            optimizer.step()

    uninterrupted = torch.nn.Parameter(torch.zeros(9))
    run(uninterrupted, NoisySGD([uninterrupted], lr=0.1, noise_seed=2), 6)

    interrupted = torch.nn.Parameter(torch.zeros(9))
    optimizer = NoisySGD([interrupted], lr=0.1, noise_seed=2)
    run(interrupted, optimizer, 3)
    resumed = torch.nn.Parameter(interrupted.detach().clone())
    loaded = NoisySGD([resumed], lr=0.1)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(resumed, loaded, 3)
    assert torch.equal(uninterrupted, resumed)


def test_noise_of_variance_0_is_zero():
    assert noise_by_step(1, noise_eta=0.0)[0][0].count_nonzero() == 0
