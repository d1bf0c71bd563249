"""Test random specs: every lowering computes what the rule says, with NaN in the same places.

`tests/fuzz/test_drawn_rules.py` draws many more rules; its gradients have no NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from parity.cases import LOWERINGS
from strategies import FLAGS, specs
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.passes.prepare_rule import add_maximize
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

STEPS = 3
SHAPES = ((7,), (2, 3), ())


@functools.cache
def load_class_and_rule(text: str) -> Any:
    """Return the generated class and its rule; a lowering is built when it is first used."""
    spec = Spec("Random", text, "<random>", 1)
    (algorithm,) = read_spec(spec)
    return optgen.load(spec), add_maximize(algorithm)


def random_tensors(seed: int) -> list[Tensor]:
    """Return normally distributed numbers, one of them NaN."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
    tensors[0][seed % 7] = torch.nan
    return tensors


def oracle_values(algorithm: Any, hypers: dict[str, Any], seed: int) -> list[Tensor]:
    """Return the parameters, each followed by its states, after the oracle's steps."""
    found = []
    for index, param in enumerate(random_tensors(seed)):
        state: dict[str, Any] = {}
        for step in range(STEPS):
            param, state = evaluate(
                algorithm,
                hypers,
                param,
                random_tensors(seed + 1 + step)[index],
                state,
                torch.float64,
            )
        found += [param, *map(torch.as_tensor, state.values())]
    return found


def lowering_values(cls: Any, options: dict[str, Any], lowering: str, seed: int) -> list[Tensor]:
    """Return the parameters, each followed by its states, after a lowering's steps."""
    params = [torch.nn.Parameter(value) for value in random_tensors(seed)]
    functional = lowering == "functional"
    optimizer = cls(params, **options, differentiable=functional)
    for param in params if functional else ():
        param.requires_grad_(False)  # a leaf that requires grad cannot be changed in place
    for step in range(STEPS):
        for param, grad in zip(params, random_tensors(seed + 1 + step), strict=True):
            param.grad = grad
        with use_lowering("forloop" if functional else lowering):
            optimizer.step()
    return [v for p in params for v in (p.detach(), *optimizer.state[p].values())]


@pytest.fixture(autouse=True)
def float64_scalars() -> Iterator[None]:
    """Keep scalar state in float64: the comparison is too exact for roundings to float32."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(text=specs(), flags=FLAGS, maximize=st.booleans(), seed=st.integers(0, 999))
def test_every_lowering_computes_the_rule(
    text: str, flags: dict[str, Any], maximize: bool, seed: int
) -> None:
    cls, algorithm = load_class_and_rule(text)
    options = {**flags, "maximize": maximize}
    note(text)
    optimizer = cls([torch.nn.Parameter(torch.ones(1))], **options)
    hypers = {hyper.name: optimizer.param_groups[0][hyper.name] for hyper in algorithm.hypers}
    expected = oracle_values(algorithm, hypers, seed)

    first_nan_places = None
    for lowering in (*LOWERINGS, "functional"):
        note(lowering)
        found = lowering_values(cls, options, lowering, seed)
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b)
        nan_places = [value.isnan().tolist() for value in found]
        first_nan_places = first_nan_places or nan_places
        assert nan_places == first_nan_places


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Compare to ten digits of the largest number. NaN may be only where the rule has NaN.

    The rule may have NaN in more places: a plan cancels m in m - (m + p), also if m is NaN.
    """
    assert not (found.isnan() & ~expected.isnan()).any()
    expected = torch.where(found.isnan(), torch.nan, expected)
    found = torch.where(expected.isnan(), torch.nan, found)
    scale = float(expected[expected.isfinite()].abs().max()) if expected.isfinite().any() else 1.0
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=1e-10, atol=1e-10 * scale, equal_nan=True
    )
