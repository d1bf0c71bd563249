"""Test rules on matrices with gradients of any size and rank: zeros, one sample, tiny, huge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from spec_files import spec_file
from torch import Tensor

import optgen
import optgen.optim
from optgen.ir.evaluate import evaluate
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

ORTHOGONAL = ("NorMuon", "PolarMuon", "AdaMuon", "MuonH", "MuonClip", "Scion")
"""Classes that make the momentum orthogonal, so that a step does not depend on its size."""
DECOMPOSED = ("Shampoo", "OneSidedShampoo", "SOAP", "KLSOAP", "Kron", "Dion", "GaLore", "APOLLO")
LOWERINGS = ("forloop", "foreach", "fused_cpu")
SHAPES = ((16, 16), (8, 32), (32, 8), (1, 16), (16, 1))
SMALL_SCALES = (2.0**-27, 2.0**-67, 2.0**-80)
"""Factors of a gradient; a power of two changes no rounding."""


def gradient(kind: str, rows: int, cols: int, generator: torch.Generator) -> Tensor:
    """Return a gradient of a kind: of low rank, with equal elements, or scaled."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    if kind == "one sample":
        return 30 * torch.outer(draw(rows), draw(cols))
    if kind == "rank 2":
        return 10 * draw(rows, 2) @ draw(2, cols)
    if kind == "ones":
        return torch.ones(rows, cols)
    if kind == "one row":
        return torch.cat([draw(1, cols), torch.zeros(rows - 1, cols)])
    return draw(rows, cols) * float(kind)


KINDS = ("one sample", "rank 2", "ones", "one row", "0", "1e-42", "1e-30", "1e-20", "1e-8", "1e15")


def make(name: str, params: Any, **options: Any) -> Any:
    rank = {"rank": 4} if name in ("Dion", "GaLore", "APOLLO") else {}
    return getattr(optgen.optim, name)(params, **rank, **options)


def test_every_class_that_takes_whole_matrices_is_listed() -> None:
    classes = (getattr(optgen.optim, name) for name in optgen.optim.__all__)
    generated = [c for c in classes if isinstance(c, type) and issubclass(c, GeneratedOptimizer)]
    whole = {c.__name__ for c in generated if getattr(c, "rule", None) and c.rule.why_uncut}
    assert whole <= {*ORTHOGONAL, *DECOMPOSED}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ["Muon", *ORTHOGONAL, *DECOMPOSED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps_are_finite(name: str, lowering: str, dtype: torch.dtype) -> None:
    with optgen.use_lowering(lowering):
        for kind in KINDS:
            generator = torch.Generator().manual_seed(0)
            params = [
                torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in SHAPES
            ]
            optimizer = make(name, params)
            for _ in range(7):
                for param in params:
                    param.grad = gradient(kind, *param.shape, generator).to(dtype)
                optimizer.step()
            assert all(param.isfinite().all() for param in params), kind


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ORTHOGONAL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_small_gradients_take_steps_of_full_length(
    name: str, lowering: str, dtype: torch.dtype
) -> None:
    steps = dict(steps_of_scaled_gradients(name, lowering, dtype))
    for scale in SMALL_SCALES:
        difference = steps[scale] - steps[1]
        # The rule's eps is not scaled. It may turn the rounding of one element to 16 bits.
        turned = dtype == torch.bfloat16 and difference.count_nonzero() == 1
        assert turned or difference.norm() < 1e-5 * steps[1].norm(), scale
    assert not steps[0].any()


def steps_of_scaled_gradients(
    name: str, lowering: str, dtype: torch.dtype
) -> Iterator[tuple[float, Tensor]]:
    """Yield scales of a gradient, and the second step with it; the first one has weight decay."""
    for scale in (1, *SMALL_SCALES, 0):
        generator = torch.Generator().manual_seed(1)
        start = torch.randn(24, 16, generator=generator).to(dtype)
        param = start.clone().requires_grad_()
        decay = {"unconstrained": True} if name == "Scion" else {"weight_decay": 0.0}
        options = {} if name == "MuonH" else decay
        with optgen.use_lowering(lowering):
            optimizer = make(name, [param], lr=0.5, **options)
            for _ in range(2):
                param.grad = (torch.randn(24, 16, generator=generator) * scale).to(dtype)
                optimizer.step()
        yield scale, param.detach().double() - start.double()


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("shape", [(32, 8), (8, 32)])
def test_first_steps_of_projected_moments_are_those_of_adam(
    shape: tuple[int, int], lowering: str
) -> None:
    """Adam's first step is at most 1 for each element, also where a projection is only noise."""
    for scale in (1, 1e3, 1e6, 1e12):
        generator = torch.Generator().manual_seed(0)
        param = torch.zeros(shape).requires_grad_()
        param.grad = scale * gradient("one sample", *shape, generator)
        with optgen.use_lowering(lowering):
            optgen.optim.GaLore([param], lr=1.0, scale=1.0, rank=8).step()
        assert param.norm() < 1.01 * (8 * 32) ** 0.5


def test_a_vector_of_scion_takes_steps_of_full_length() -> None:
    for scale in (1, *SMALL_SCALES, 2.0**90):
        param = torch.zeros(5, requires_grad=True)
        param.grad = torch.tensor([3.0, -1.0, 0.0, 2.0, 1.0]) * scale
        optgen.optim.Scion([param], lr=1.0, unconstrained=True).step()
        torch.testing.assert_close(param, -torch.tensor([3.0, -1, 0, 2, 1]) / 3**0.5)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ["Shampoo", "OneSidedShampoo"])
@pytest.mark.parametrize("size", [0.1, 10, 1000])
def test_steps_with_singular_covariances_are_those_of_the_oracle(
    name: str, lowering: str, size: float
) -> None:
    stem = {"Shampoo": "shampoo", "OneSidedShampoo": "one_sided_shampoo"}[name]
    path = spec_file(stem)
    (algorithm,) = read_spec(Spec(name, path.read_text(), str(path), 1))
    options = {"update_freq": 3} if name == "Shampoo" else {"every": 3}
    generator = torch.Generator().manual_seed(3)
    param = torch.zeros(24, 40).requires_grad_()
    optimizer = make(name, [param], lr=1.0, **options)
    expected, state = param.detach().double(), {}
    hypers = {h.name: optimizer.param_groups[0][h.name] for h in algorithm.hypers}
    with optgen.use_lowering(lowering):
        for _ in range(7):
            param.grad = (
                size
                * torch.randn(24, 2, generator=generator)
                @ torch.randn(2, 40, generator=generator)
            )
            optimizer.step()
            expected, state = evaluate(
                algorithm, hypers, expected, param.grad, state, storage_dtype=torch.float32
            )
            error = (param.detach().double() - expected).abs().max() / expected.abs().max()
            assert error < 1e-2  # a kept root multiplies rounding by up to 1,000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch", [1, 8, 512])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("Shampoo", {"lr": 0.02, "update_freq": every}) for every in (1, 5)),
        *(("OneSidedShampoo", {"lr": 0.003, "every": every}) for every in (1, 5, 20)),
    ],
)
def test_every_step_of_a_regression_with_few_samples_is_short_and_the_weights_come_nearer(
    name: str, options: dict[str, Any], batch: int, dtype: torch.dtype
) -> None:
    """Covariances are singular, and roots that are kept meet gradients in new directions."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.zeros(32, 64, dtype=dtype, requires_grad=True)
    target = torch.randn(32, 64, generator=generator) / 8
    optimizer = make(name, [weight], **options)
    distances = [target.norm().item()]
    for _ in range(100):
        inputs = torch.randn(batch, 64, generator=generator)
        (inputs @ (weight.float() - target).mT).square().mean().backward()
        before = weight.detach().float()
        optimizer.step()
        optimizer.zero_grad()
        assert (weight.detach().float() - before).norm() < 1.5 * options["lr"] * 32**0.5
        distances.append((weight.detach().float() - target).norm().item())
    assert max(distances) == distances[0]
    assert distances[-1] < 0.98 * distances[0]


@pytest.mark.parametrize("name", ["muon", "scion"])
def test_explain_says_what_a_clip_does_to_a_rule_that_orthogonalises(name: str) -> None:
    param = torch.zeros(4, 3, requires_grad=True)
    clipped = optgen.compose(name, optgen.modifiers.clip_norm(1.0))([param])
    assert optgen.explain(clipped).count("changes only their weight in the momentum") == 1
    skipping = optgen.compose(name, optgen.modifiers.skip_nonfinite)([param])
    assert "momentum" not in optgen.explain(skipping)


@pytest.mark.parametrize("large", [1.0, 1e5])
def test_a_clip_of_all_gradients_leaves_steps_of_full_length(large: float) -> None:
    """A huge gradient beside it makes the clipped gradient of a matrix small."""
    clipped = optgen.compose("normuon", optgen.modifiers.clip_norm(1.0))
    params = [torch.zeros(32, 32, requires_grad=True) for _ in range(2)]
    for param, size in zip(params, (0.01, large), strict=True):
        generator = torch.Generator().manual_seed(0)
        param.grad = size * 1e-5 * torch.randn(32, 32, generator=generator)
        param.grad = param.grad * (1e5 if size == large else 1)
    clipped(params, lr=0.02).step()
    lengths = [param.norm().item() for param in params]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.03)
